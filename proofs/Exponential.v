(** The exponential mechanism for a quantile, on a finite set of values.

    A value v covers the ranks from L = #{records < v} to U = #{records <= v};
    its distance is that of the target p n from them. One record changes every
    distance by between -max(p, 1-p) and +max(p, 1-p): a range of twice that. *)

From Coq Require Import Reals ZArith List Lra Lia Bool.
From Prudent Require Import Finite Pure.
From Prudent Require Quantile.
Import ListNotations.
Open Scope R_scope.

(** ** Distances: whole numbers of 1/b records, for p = a/b; also extracted *)

Definition distance (a b : Z) (l : list Z) (v : Z) : Z :=
  Z.max 0 (Z.max (b * Quantile.count (fun x => x <? v)%Z l - a * Quantile.size l)
                 (a * Quantile.size l - b * Quantile.count (fun x => x <=? v)%Z l)).

(** The range of their changes: 2 max(p, 1 - p), in the same unit. *)
Definition spread (a b : Z) : Z := 2 * Z.max a (b - a).

Definition capped (a b cap : Z) (l : list Z) (v : Z) : Z := Z.min (distance a b l v) (cap * b).

Lemma below_upto v l :
  (Quantile.count (fun y => y <? v)%Z l <= Quantile.count (fun y => y <=? v)%Z l)%Z.
Proof.
  induction l as [|y l IH]; [reflexivity|]. rewrite !Quantile.count_cons.
  destruct (Z.ltb_spec y v), (Z.leb_spec y v); lia.
Qed.

Theorem distance_of_one_more a b l v x :
  (0 < a <= b)%Z ->
  (Z.abs (distance a b (x :: l) v - distance a b l v) <= Z.max a (b - a))%Z.
Proof.
  intros F. unfold distance. rewrite !Quantile.count_cons.
  replace (Quantile.size (x :: l)) with (1 + Quantile.size l)%Z
    by (unfold Quantile.size; simpl length; lia).
  set (n := Quantile.size l).
  pose proof (below_upto v l) as LU.
  apply (Z.mul_le_mono_nonneg_l _ _ b) in LU; [|lia].
  destruct (Z.ltb_spec x v), (Z.leb_spec x v); lia.
Qed.

Lemma capped_of_one_more a b cap l v x :
  (0 < a <= b)%Z ->
  (2 * Z.abs (capped a b cap (x :: l) v - capped a b cap l v) <= spread a b)%Z.
Proof.
  intros F. pose proof (distance_of_one_more a b l v x F). unfold capped, spread. lia.
Qed.

(** ** The mechanism *)

Definition normalised {V} (vs : list V) (w : V -> R) (v : V) : R := w v / sum vs w.

(** c is the rate per record, mass the public measure. *)
Definition weight (a b cap : Z) (c : R) (mass : Z -> R) (l : list Z) (v : Z) : R :=
  mass v * exp (- c * (IZR (capped a b cap l v) / IZR b)).

Definition mechanism a b cap c mass (vs l : list Z) : Z -> R :=
  normalised vs (weight a b cap c mass l).

Lemma sum_positive {V} (vs : list V) w :
  vs <> [] -> (forall v, In v vs -> 0 < w v) -> 0 < sum vs w.
Proof.
  destruct vs as [|v vs]; [easy|]. intros _ H. simpl.
  assert (0 <= sum vs w) by (apply sum_nonneg; intros; left; apply H; simpl; auto).
  pose proof (H v (or_introl eq_refl)). lra.
Qed.

Lemma normalised_distribution {V} (vs : list V) w :
  vs <> [] -> (forall v, In v vs -> 0 < w v) -> distribution vs (normalised vs w).
Proof.
  intros N H. pose proof (sum_positive vs w N H). split.
  - intros v I. left. apply Rmult_lt_0_compat; [auto|apply Rinv_0_lt_compat; auto].
  - unfold normalised, Rdiv. rewrite sum_scale_right. apply Rinv_r. lra.
Qed.

(** It is a distribution: masses are not negative and sum to one. *)
Theorem mechanism_distribution a b cap c mass vs l :
  vs <> [] -> (forall v, In v vs -> 0 < mass v) ->
  distribution vs (mechanism a b cap c mass vs l).
Proof.
  intros N H. apply normalised_distribution; auto. intros v I.
  apply Rmult_lt_0_compat; [auto|apply exp_pos].
Qed.

Lemma normalised_range {V} (vs : list V) w w' h r :
  vs <> [] -> (forall v, In v vs -> 0 < w v) -> (forall v, In v vs -> 0 < w' v) -> 0 < h ->
  (forall v, In v vs -> h * w v <= w' v <= r * h * w v) ->
  bounded_range vs r (normalised vs w') (normalised vs w).
Proof.
  intros N P P' H0 H. pose proof (sum_positive vs w N P) as S.
  pose proof (sum_positive vs w' N P') as S'.
  assert (I : 0 < / sum vs w') by (apply Rinv_0_lt_compat; auto).
  exists (h * (sum vs w / sum vs w')). split.
  - apply Rmult_lt_0_compat; auto. apply Rmult_lt_0_compat; auto.
  - intros v V1. destruct (H v V1) as [A B]. unfold normalised.
    replace (h * (sum vs w / sum vs w') * (w v / sum vs w)) with (h * w v * / sum vs w')
      by (field; split; lra).
    replace (r * (h * (sum vs w / sum vs w')) * (w v / sum vs w))
      with (r * h * w v * / sum vs w') by (field; split; lra).
    split; apply Rmult_le_compat_r; lra.
Qed.

Section Privacy.

Variables a b cap : Z.
Hypothesis fraction : (0 < a <= b)%Z.
Variable epsilon : R.
Hypothesis price : 0 < epsilon.
Variable mass : Z -> R.
Variable vs : list Z.
Hypothesis some : vs <> [].
Hypothesis masses : forall v, In v vs -> 0 < mass v.

(** c = epsilon / (2 max(p, 1 - p)) *)
Definition rate : R := epsilon / (IZR (spread a b) / IZR b).

Lemma b_positive : 0 < IZR b.
Proof. apply (IZR_lt 0). lia. Qed.

Lemma spread_positive : 0 < IZR (spread a b).
Proof. apply (IZR_lt 0). unfold spread. lia. Qed.

Lemma weights_close l x v :
  In v vs ->
  let w := weight a b cap rate mass l in
  let w' := weight a b cap rate mass (x :: l) in
  exp (- epsilon / 2) * w v <= w' v <= exp epsilon * exp (- epsilon / 2) * w v.
Proof.
  intros I w w'. pose proof b_positive as B. pose proof spread_positive as S.
  pose proof (masses v I) as M. unfold w, w', weight.
  set (d := IZR (capped a b cap l v)). set (d' := IZR (capped a b cap (x :: l) v)).
  assert (C : 2 * Rabs (d' - d) <= IZR (spread a b)).
  { unfold d, d'. rewrite <- minus_IZR, <- abs_IZR, <- mult_IZR. apply IZR_le.
    apply capped_of_one_more. auto. }
  assert (D : - (epsilon / 2) <= - rate * (d' / IZR b) - - rate * (d / IZR b) <= epsilon / 2).
  { unfold rate.
    replace (- (epsilon / (IZR (spread a b) / IZR b)) * (d' / IZR b)
             - - (epsilon / (IZR (spread a b) / IZR b)) * (d / IZR b))
      with (epsilon * ((d - d') / IZR (spread a b))) by (field; lra).
    assert (E : - (1 / 2) <= (d - d') / IZR (spread a b) <= 1 / 2).
    { pose proof (Rle_abs (d' - d)). pose proof (Rle_abs (- (d' - d))) as A.
      rewrite Rabs_Ropp in A.
      split; apply Rmult_le_reg_r with (IZR (spread a b)); auto;
        unfold Rdiv; rewrite Rmult_assoc, Rinv_l by lra; lra. }
    split; nra. }
  split.
  - replace (exp (- epsilon / 2) * (mass v * exp (- rate * (d / IZR b))))
      with (mass v * exp (- epsilon / 2 + - rate * (d / IZR b))) by (rewrite exp_plus; ring).
    apply Rmult_le_compat_l; [lra|].
    destruct (Req_dec (- epsilon / 2 + - rate * (d / IZR b)) (- rate * (d' / IZR b))) as [->|];
      [lra|]. left. apply exp_increasing. lra.
  - replace (exp epsilon * exp (- epsilon / 2) * (mass v * exp (- rate * (d / IZR b))))
      with (mass v * exp (epsilon + - epsilon / 2 + - rate * (d / IZR b)))
      by (rewrite !exp_plus; ring).
    apply Rmult_le_compat_l; [lra|].
    destruct (Req_dec (- rate * (d' / IZR b)) (epsilon + - epsilon / 2 + - rate * (d / IZR b)))
      as [->|]; [lra|]. left. apply exp_increasing. lra.
Qed.

Lemma weights_positive l v : In v vs -> 0 < weight a b cap rate mass l v.
Proof. intros I. apply Rmult_lt_0_compat; [auto|apply exp_pos]. Qed.

Let M := mechanism a b cap rate mass vs.

(** Adding a record: the losses lie in a range of length epsilon. *)
Theorem exponential_mechanism_adding l x : bounded_range vs (exp epsilon) (M (x :: l)) (M l).
Proof.
  apply normalised_range with (exp (- epsilon / 2)); auto using weights_positive, exp_pos.
  intros v I. apply (weights_close l x v I).
Qed.

(** Removing a record: so do their negatives. *)
Theorem exponential_mechanism_removing l x : bounded_range vs (exp epsilon) (M l) (M (x :: l)).
Proof.
  apply normalised_range with (exp (- epsilon / 2)); auto using weights_positive, exp_pos.
  intros v I. destruct (weights_close l x v I) as [A B]. cbv zeta in *.
  assert (E : exp epsilon * exp (- epsilon / 2) * exp (- epsilon / 2) = 1)
    by (rewrite <- !exp_plus, <- exp_0; f_equal; lra).
  pose proof (exp_pos (- epsilon / 2)). pose proof (exp_pos epsilon).
  set (w := weight a b cap rate mass l v) in *. set (w' := weight _ _ _ _ _ (x :: l) v) in *.
  split.
  - assert (exp (- epsilon / 2) * w' <= exp (- epsilon / 2) * (exp epsilon * exp (- epsilon / 2) * w))
      by (apply Rmult_le_compat_l; lra).
    assert (exp (- epsilon / 2) * (exp epsilon * exp (- epsilon / 2) * w)
            = exp epsilon * exp (- epsilon / 2) * exp (- epsilon / 2) * w) by ring.
    rewrite E in *. lra.
  - assert (exp epsilon * exp (- epsilon / 2) * (exp (- epsilon / 2) * w)
            <= exp epsilon * exp (- epsilon / 2) * w')
      by (apply Rmult_le_compat_l; [apply Rmult_le_pos; lra|lra]).
    assert (exp epsilon * exp (- epsilon / 2) * (exp (- epsilon / 2) * w)
            = exp epsilon * exp (- epsilon / 2) * exp (- epsilon / 2) * w) by ring.
    rewrite E in *. lra.
Qed.

(** So the mechanism is epsilon-DP, and dominated by the pair of a bounded range. *)
Theorem exponential_mechanism_private l x : indistinguishable vs (exp epsilon) (M (x :: l)) (M l).
Proof.
  apply bounded_range_is_pure; try apply mechanism_distribution; auto.
  - rewrite <- exp_0. left. apply exp_increasing. lra.
  - apply exponential_mechanism_adding.
Qed.

Theorem exponential_mechanism_profile l x t :
  t <= epsilon ->
  hockey vs (M (x :: l)) (M l) (exp t) <= bounded_range_profile (exp epsilon) (exp t) /\
  hockey vs (M l) (M (x :: l)) (exp t) <= bounded_range_profile (exp epsilon) (exp t).
Proof.
  intros T.
  assert (1 < exp epsilon) by (rewrite <- exp_0; apply exp_increasing; lra).
  assert (0 <= exp t <= exp epsilon).
  { split; [left; apply exp_pos|]. destruct (Req_dec t epsilon) as [->|]; [lra|].
    left. apply exp_increasing. lra. }
  split; apply bounded_range_dominates; auto; try apply mechanism_distribution; auto;
    [apply exponential_mechanism_adding|apply exponential_mechanism_removing].
Qed.

End Privacy.

(** ** Sanity: half the range is not enough *)

(** Two records and the median: a third one below both values brings -5 nearer by a
    half, and takes 5 as far away. *)
Example distances :
  distance 1 2 [0; 0]%Z (-5) = 2%Z /\ distance 1 2 [0; 0]%Z 5 = 2%Z /\
  distance 1 2 [-9; 0; 0]%Z (-5) = 1%Z /\ distance 1 2 [-9; 0; 0]%Z 5 = 3%Z.
Proof. repeat split. Qed.

Lemma halves n : exp (- (2 * ln 2) * (IZR (Z.of_nat n) / 2)) = (/ 2) ^ n.
Proof.
  induction n as [|n IH]; [simpl; rewrite <- exp_0; f_equal; lra|].
  rewrite Nat2Z.inj_succ, succ_IZR. simpl pow. rewrite <- IH.
  replace (/ 2) with (exp (- ln 2)) by (rewrite exp_Ropp, exp_ln; lra).
  rewrite <- exp_plus. f_equal. lra.
Qed.

(** With c = epsilon / max(p, 1 - p), here at epsilon = ln 2, the mechanism is
    not epsilon-DP: a probability grows by more than 3, where e^epsilon is 2. *)
Example half_the_range_is_not_enough :
  let mass v := if (v =? 5)%Z then 100 else 1 in
  let M := mechanism 1 2 9 (ln 2 / (1 / 2)) mass [-5; 5]%Z in
  3 * M [0; 0]%Z (-5)%Z < M [-9; 0; 0]%Z (-5)%Z.
Proof.
  intros mass M. unfold M, mechanism, normalised, weight, sum, capped. cbn [fold_right].
  destruct distances as (-> & -> & -> & ->).
  replace (ln 2 / (1 / 2)) with (2 * ln 2) by field.
  change (Z.min 2 (9 * 2)) with (Z.of_nat 2). change (Z.min 1 (9 * 2)) with (Z.of_nat 1).
  change (Z.min 3 (9 * 2)) with (Z.of_nat 3). rewrite !halves. unfold mass. simpl.
  match goal with |- 3 * ?x < ?y =>
    assert (x = 1 / 101) as -> by field; assert (y = 1 / 26) as -> by field end.
  lra.
Qed.
