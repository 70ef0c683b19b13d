"""Public feature maps of pretrained networks: ResNet18 for images, MiniLM for texts."""
