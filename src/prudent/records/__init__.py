"""The one module through which records enter: training, federated rounds, tuning, certificates.

A record's contribution must be a function of that record and of public facts alone, bit for bit,
whatever stands beside it. So every entry reads records by the same three rules:

1. The form of a record (structure, number types, shapes) is declared, or is that of most of the
   first records, so that no single record decides it.
2. Each record is converted to that form alone. One that cannot be read or does not fit counts as
   absent: it has weight zero, as padding has.
3. What is drawn at random while a record is read comes from a stream of its own, which follows from
   the key of the run, the step and the record's id, never from its place in a batch.

| module | what it holds |
|---|---|
| `form` | the form of a record, and the conversion of one record to it |
| `reader` | reads the records of a data set of items, with or without a `collate_fn` |
| `people` | the records of each person, and which of them count in a step |
| `seeds` | the random stream of each record |
| `arrays` | arrays, lists and tables of records and of labels, for certificates |
| `whole_network` | codes of images in whole numbers |
| `containers` | what is accepted as a set of records, its length, and its fingerprint |
"""
