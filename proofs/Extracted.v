(** The definitions that run beside the Python that ships, under plain names. *)

From Coq Require Import ZArith QArith List Extraction ExtrOcamlBasic.
From Prudent Require Counts TrimmedSum Quantile Exponential Profiles.

Definition scores := Counts.scores.
Definition insert_record := Counts.change.
Definition moves := Counts.moves.
Definition noisy := Counts.noisy.
Definition winner := Counts.winner.
Definition radius := Counts.radius.

Definition vectors_kept := TrimmedSum.vectors_kept.
Definition vectors_margin := TrimmedSum.vectors_margin.
Definition whole_kept := TrimmedSum.kept (Z * Z) TrimmedSum.whole_before.
Definition whole_margin := TrimmedSum.margin (Z * Z) TrimmedSum.whole_norm.

Definition quantile := Quantile.quantile.
Definition quantile_margin := Quantile.margin.
Definition interquartile_range := Quantile.interquartile_range.

Definition distance := Exponential.distance.
Definition spread := Exponential.spread.

Definition tail := Profiles.tail_q.
Definition threshold := Profiles.threshold.
Definition profile := Profiles.profile.
Definition swapped := Profiles.swapped.
Definition removing := Profiles.removing_q.
Definition adding := Profiles.adding_q.
Definition branch_pair := Profiles.branch_pair_q.
Definition case_one := Profiles.case_one_q.
Definition response := Profiles.response_q.
Definition product := Profiles.product_q.
Definition bounded_range := Profiles.bounded_range_q.
Definition geometric := Profiles.geometric_q.
Definition admitted := Profiles.admitted_q.
Definition rho := Profiles.rho_q.
Definition delta := Profiles.delta_q.

Extraction "extracted.ml" scores insert_record moves noisy winner radius
  vectors_kept vectors_margin whole_kept whole_margin
  quantile quantile_margin interquartile_range distance spread
  tail threshold profile swapped removing adding branch_pair case_one response
  product bounded_range geometric admitted rho delta.
