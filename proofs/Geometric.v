(** The geometric mechanism: discrete Laplace noise, on a window of whole numbers.

    Noise x has a mass proportional to q^|x|, q = e^(-1/b). What falls outside a
    public window is moved to its ends, which is post-processing, so that all
    distributions are finite; the window may be as wide as one likes. *)

From Coq Require Import Reals ZArith List Lra Lia Bool.
From Prudent Require Import Finite Pure ProposeTestRelease.
Import ListNotations.
Open Scope R_scope.

Section Geometric.

Variable q : R.
Hypothesis decay : 0 < q < 1.

(** Pr[noise > j] *)
Definition tail (j : Z) : R :=
  if (0 <=? j)%Z then q ^ Z.to_nat (j + 1) / (1 + q) else 1 - q ^ Z.to_nat (- j) / (1 + q).

Definition point (j : Z) : R := (1 - q) / (1 + q) * q ^ Z.to_nat (Z.abs j).

Lemma power_positive n : 0 < q ^ n.
Proof. apply pow_lt. lra. Qed.

Lemma power_step n : q ^ S n = q * q ^ n.
Proof. reflexivity. Qed.

Lemma power_at_most_one n : q ^ n <= 1.
Proof. induction n; simpl; [lra|]. pose proof (power_positive n). nra. Qed.

Lemma inverse_positive : 0 < / (1 + q).
Proof. apply Rinv_0_lt_compat. lra. Qed.

(** The tails are those of these masses. *)
Lemma tail_difference j : tail (j - 1) - tail j = point j.
Proof.
  unfold tail, point. destruct (Z.leb_spec 0 (j - 1)), (Z.leb_spec 0 j); try lia.
  - replace (Z.to_nat (j - 1 + 1)) with (Z.to_nat (Z.abs j)) by lia.
    replace (Z.to_nat (j + 1)) with (S (Z.to_nat (Z.abs j))) by lia. rewrite power_step. field. lra.
  - replace (Z.to_nat (- (j - 1))) with 1%nat by lia. replace (Z.to_nat (j + 1)) with 1%nat by lia.
    replace (Z.to_nat (Z.abs j)) with 0%nat by lia. simpl. field. lra.
  - replace (Z.to_nat (- (j - 1))) with (S (Z.to_nat (Z.abs j))) by lia.
    replace (Z.to_nat (- j)) with (Z.to_nat (Z.abs j)) by lia. rewrite power_step. field. lra.
Qed.

Lemma tail_symmetric j : 1 - tail j = tail (- j - 1).
Proof.
  unfold tail. destruct (Z.leb_spec 0 j), (Z.leb_spec 0 (- j - 1)); try lia.
  - replace (Z.to_nat (- (- j - 1))) with (Z.to_nat (j + 1)) by lia. ring.
  - replace (Z.to_nat (- j - 1 + 1)) with (Z.to_nat (- j)) by lia. ring.
Qed.

Lemma point_positive j : 0 < point j.
Proof.
  unfold point. apply Rmult_lt_0_compat; [|apply power_positive].
  apply Rmult_lt_0_compat; [lra|apply inverse_positive].
Qed.

Lemma tail_positive j : 0 < tail j.
Proof.
  pose proof inverse_positive. unfold tail. destruct (Z.leb_spec 0 j).
  - apply Rmult_lt_0_compat; [apply power_positive|auto].
  - pose proof (power_at_most_one (Z.to_nat (- j))).
    assert (q ^ Z.to_nat (- j) / (1 + q) < 1); [|lra].
    apply Rmult_lt_reg_r with (1 + q); [lra|]. unfold Rdiv. rewrite Rmult_assoc, Rinv_l by lra. lra.
Qed.

(** One step changes a tail by a factor between q and 1. *)
Lemma tail_step j : q * tail (j - 1) <= tail j <= tail (j - 1).
Proof.
  pose proof (tail_difference j) as D. pose proof (point_positive j). split; [|lra].
  destruct (Z_le_gt_dec 0 j).
  - unfold tail. destruct (Z.leb_spec 0 (j - 1)), (Z.leb_spec 0 j); try lia.
    + replace (Z.to_nat (j - 1 + 1)) with (Z.to_nat j) by lia.
      replace (Z.to_nat (j + 1)) with (S (Z.to_nat j)) by lia. rewrite power_step. right. field. lra.
    + replace (Z.to_nat (- (j - 1))) with 1%nat by lia. replace (Z.to_nat (j + 1)) with 1%nat by lia.
      simpl. right. field. lra.
  - (* Here all tails are at least 1/(1+q), and a point has at most (1-q)/(1+q) q. *)
    assert (T : / (1 + q) <= tail (j - 1)).
    { unfold tail. destruct (Z.leb_spec 0 (j - 1)); [lia|].
      replace (Z.to_nat (- (j - 1))) with (S (Z.to_nat (- j))) by lia. rewrite power_step.
      pose proof (power_at_most_one (Z.to_nat (- j))). pose proof (power_positive (Z.to_nat (- j))).
      apply Rmult_le_reg_r with (1 + q); [lra|].
      replace ((1 - q * q ^ Z.to_nat (- j) / (1 + q)) * (1 + q))
        with (1 + q - q * q ^ Z.to_nat (- j)) by (field; lra).
      rewrite Rinv_l by lra. nra. }
    assert (P : point j <= (1 - q) * / (1 + q)).
    { unfold point. pose proof (power_at_most_one (Z.to_nat (Z.abs j))).
      assert (0 <= (1 - q) / (1 + q)) by (left; apply Rmult_lt_0_compat; [lra|apply inverse_positive]).
      unfold Rdiv in *. nra. }
    assert ((1 - q) * / (1 + q) <= (1 - q) * tail (j - 1)) by (apply Rmult_le_compat_l; lra).
    lra.
Qed.

(** *** The law on a window from lo to lo + n *)

Variable lo : Z.
Variable n : nat.
Hypothesis width : (1 <= n)%nat.
Definition hi : Z := lo + Z.of_nat n.
Definition window : list Z := map (fun i => lo + Z.of_nat i)%Z (seq 0 (S n)).

(** Pr[clamped d + noise > k] *)
Definition upper (d k : Z) : R :=
  if (k <? lo)%Z then 1 else if (hi <=? k)%Z then 0 else tail (k - d).

Definition law (d s : Z) : R := upper d (s - 1) - upper d s.

Lemma in_window s : In s window <-> (lo <= s <= hi)%Z.
Proof.
  unfold window, hi. rewrite in_map_iff. split.
  - intros (i & <- & I). apply in_seq in I. lia.
  - intros B. exists (Z.to_nat (s - lo)). split; [lia|]. apply in_seq. lia.
Qed.

Lemma telescope (F : Z -> R) (B : Z) i m :
  sum (map (fun i => lo + Z.of_nat i)%Z (seq i m)) (fun s => if (B <? s)%Z then F (s - 1)%Z - F s else 0)
  = F (Z.max B (lo + Z.of_nat i - 1)) - F (Z.max B (lo + Z.of_nat i + Z.of_nat m - 1)).
Proof.
  revert i; induction m as [|m IH]; intros i.
  - simpl. replace (lo + Z.of_nat i + 0 - 1)%Z with (lo + Z.of_nat i - 1)%Z by lia. ring.
  - cbn [seq map sum fold_right]. fold (@sum Z).
    change (fold_right _ 0 (map (fun i0 => (lo + Z.of_nat i0)%Z) (seq (S i) m)))
      with (sum (map (fun i => lo + Z.of_nat i)%Z (seq (S i) m))
             (fun s => if (B <? s)%Z then F (s - 1)%Z - F s else 0)).
    rewrite IH.
    replace (lo + Z.of_nat (S i) - 1)%Z with (lo + Z.of_nat i)%Z by lia.
    replace (lo + Z.of_nat (S i) + Z.of_nat m - 1)%Z with (lo + Z.of_nat i + Z.of_nat (S m) - 1)%Z by lia.
    destruct (Z.ltb_spec B (lo + Z.of_nat i)).
    + rewrite (Z.max_r B (lo + Z.of_nat i)), (Z.max_r B (lo + Z.of_nat i - 1)) by lia. ring.
    + rewrite (Z.max_l B (lo + Z.of_nat i)), (Z.max_l B (lo + Z.of_nat i - 1)) by lia. ring.
Qed.

Lemma upper_below d k : (k < lo)%Z -> upper d k = 1.
Proof. intros. unfold upper. destruct (Z.ltb_spec k lo); auto; lia. Qed.

Lemma upper_beyond d k : (hi <= k)%Z -> upper d k = 0.
Proof.
  intros. unfold upper, hi in *. destruct (Z.ltb_spec k lo); [lia|].
  destruct (Z.leb_spec (lo + Z.of_nat n) k); auto; lia.
Qed.

Lemma upper_within d k : (lo <= k < hi)%Z -> upper d k = tail (k - d).
Proof.
  intros. unfold upper. destruct (Z.ltb_spec k lo); [lia|]. destruct (Z.leb_spec hi k); auto; lia.
Qed.

(** The law of each outcome, by its place. *)
Lemma law_cases d s :
  (lo <= s <= hi)%Z ->
  s = lo /\ law d s = tail (d - lo - 1) \/
  s = hi /\ law d s = tail (hi - d - 1) \/
  (lo < s < hi)%Z /\ law d s = point (s - d).
Proof.
  intros B. unfold law. assert (L : (lo < hi)%Z) by (unfold hi; lia).
  destruct (Z.eq_dec s lo) as [->|]; [left; split; auto|].
  { rewrite upper_below, upper_within by lia. rewrite tail_symmetric. f_equal. lia. }
  right. destruct (Z.eq_dec s hi) as [->|]; [left; split; auto|].
  { rewrite upper_within, upper_beyond by lia. rewrite Rminus_0_r. f_equal. lia. }
  right. split; [lia|]. rewrite !upper_within by lia.
  rewrite <- tail_difference. f_equal. f_equal. lia.
Qed.

Lemma law_positive d s : In s window -> 0 < law d s.
Proof.
  intros I. apply in_window in I. destruct (law_cases d s I) as [[_ ->]|[[_ ->]|[_ ->]]];
    auto using tail_positive, point_positive.
Qed.

(** It is a distribution. *)
Theorem law_distribution d : distribution window (law d).
Proof.
  split; [intros s I; left; apply law_positive; auto|].
  transitivity (sum window (fun s => if (lo - 1 <? s)%Z then upper d (s - 1) - upper d s else 0)).
  - apply sum_ext. intros s I. apply in_window in I. destruct (Z.ltb_spec (lo - 1) s); [auto|lia].
  - unfold window. rewrite telescope. rewrite upper_below by lia. rewrite upper_beyond; [ring|].
    unfold hi. lia.
Qed.

(** Pr[noisy margin > B] *)
Theorem chance_of_passing d B :
  (lo <= B < hi)%Z -> chance Z window law (fun s => B <? s)%Z d true = tail (B - d).
Proof.
  intros H. unfold chance.
  rewrite (sum_ext window _ (fun s => if (B <? s)%Z then upper d (s - 1) - upper d s else 0)).
  - unfold window. rewrite telescope. rewrite Z.max_l, Z.max_r by (unfold hi in *; lia).
    rewrite upper_within by lia. rewrite upper_beyond; [ring|]. unfold hi. lia.
  - intros s _. destruct (B <? s)%Z; reflexivity.
Qed.

(** A shift of one changes each mass by a factor of at least q. *)
Lemma law_step d d' s : (Z.abs (d - d') <= 1)%Z -> In s window -> q * law d s <= law d' s.
Proof.
  intros C I. apply in_window in I.
  assert (T : forall j j', (Z.abs (j - j') <= 1)%Z -> q * tail j <= tail j').
  { intros j j' J. pose proof (tail_positive j).
    destruct (Z.eq_dec j' j) as [->|]; [nra|]. destruct (Z.eq_dec j' (j + 1)) as [->|].
    - pose proof (tail_step (j + 1)) as S. replace (j + 1 - 1)%Z with j in S by lia. lra.
    - replace j' with (j - 1)%Z by lia. pose proof (tail_step j). nra. }
  assert (P : forall j j', (Z.abs (j - j') <= 1)%Z -> q * point j <= point j').
  { intros j j' J. unfold point.
    assert (H : q * q ^ Z.to_nat (Z.abs j) <= q ^ Z.to_nat (Z.abs j')).
    { pose proof (power_positive (Z.to_nat (Z.abs j))). pose proof (power_positive (Z.to_nat (Z.abs j'))).
      destruct (Z.eq_dec (Z.abs j') (Z.abs j)) as [->|]; [nra|].
      destruct (Z.eq_dec (Z.abs j') (Z.abs j + 1)) as [E|].
      - rewrite E. replace (Z.to_nat (Z.abs j + 1)) with (S (Z.to_nat (Z.abs j))) by lia.
        rewrite power_step. lra.
      - replace (Z.to_nat (Z.abs j)) with (S (Z.to_nat (Z.abs j'))) by lia. rewrite power_step.
        assert (q * (q * q ^ Z.to_nat (Z.abs j')) <= 1 * q ^ Z.to_nat (Z.abs j')); [|lra].
        rewrite <- Rmult_assoc. apply Rmult_le_compat_r; nra. }
    assert (0 <= (1 - q) / (1 + q)) by (left; apply Rmult_lt_0_compat; [lra|apply inverse_positive]).
    replace (q * ((1 - q) / (1 + q) * q ^ Z.to_nat (Z.abs j)))
      with ((1 - q) / (1 + q) * (q * q ^ Z.to_nat (Z.abs j))) by ring.
    apply Rmult_le_compat_l; auto. }
  assert (L : (lo < hi)%Z) by (unfold hi; lia).
  destruct (law_cases d s I) as [[A ->]|[[A ->]|[A ->]]];
    destruct (law_cases d' s I) as [[A' ->]|[[A' ->]|[A' ->]]]; try lia;
    solve [apply T; lia | apply P; lia].
Qed.

(** A shift of m, by a factor of at least q^m. *)
Lemma law_shift m d d' s :
  (Z.abs (d - d') <= Z.of_nat m)%Z -> In s window -> q ^ m * law d s <= law d' s.
Proof.
  revert d; induction m as [|m IH]; intros d C I.
  - replace d' with d by lia. simpl. lra.
  - set (e := if (d <? d')%Z then (d + 1)%Z else if (d' <? d)%Z then (d - 1)%Z else d).
    assert (E : (Z.abs (d - e) <= 1)%Z /\ (Z.abs (e - d') <= Z.of_nat m)%Z).
    { unfold e. destruct (Z.ltb_spec d d'); [lia|]. destruct (Z.ltb_spec d' d); lia. }
    pose proof (law_step d e s (proj1 E) I). pose proof (IH e (proj2 E) I).
    rewrite power_step. pose proof (power_positive m).
    assert (q ^ m * (q * law d s) <= q ^ m * law e s) by (apply Rmult_le_compat_l; lra). lra.
Qed.

(** Privacy of the geometric mechanism: e^(m/b) for a shift of m. *)
Theorem geometric_mechanism m d d' :
  (Z.abs (d - d') <= Z.of_nat m)%Z -> indistinguishable window (/ q ^ m) (law d) (law d').
Proof.
  intros C s I. pose proof (power_positive m) as P.
  pose proof (law_shift m d d' s C I). pose proof (law_shift m d' d s ltac:(lia) I).
  assert (K : forall x, q ^ m * (/ q ^ m * x) = x) by (intros; field; lra).
  split; apply Rmult_le_reg_l with (q ^ m); auto; rewrite K; lra.
Qed.

Theorem geometric_dominated m d d' :
  (Z.abs (d - d') <= Z.of_nat m)%Z ->
  dominated window (law d) (law d')
            answers (response (/ q ^ m)) (fun b => response (/ q ^ m) (negb b)).
Proof.
  intros C. apply randomised_response_dominates; auto using law_distribution.
  - rewrite <- Rinv_1. apply Rinv_le_contravar; [apply power_positive|apply power_at_most_one].
  - apply geometric_mechanism; auto.
Qed.

(** *** Which margins tell, where only the branch is revealed *)

Section Telling.
Variable B : Z.
Hypothesis inside : (lo <= B < hi)%Z.
Let chance := chance Z window law (fun s => B <? s)%Z.

Lemma chance_fails d : chance d false = 1 - chance d true.
Proof.
  destruct (chance_distribution _ _ law (fun s => B <? s)%Z law_distribution d) as [_ S].
  unfold branches, sum in S. cbn [fold_right] in S. unfold chance.
  revert S. generalize (ProposeTestRelease.chance Z window law (fun s => B <? s)%Z d).
  intros c S. lra.
Qed.

(** Up to the margin B + 1 passing is rare, and falls by q with each record. *)
Lemma rare_passes d : (d <= B + 1)%Z -> chance d true = q ^ Z.to_nat (B + 1 - d) / (1 + q).
Proof.
  intros D. unfold chance. rewrite chance_of_passing by auto. unfold tail.
  destruct (Z.leb_spec 0 (B - d)).
  - f_equal. f_equal. lia.
  - replace (Z.to_nat (- (B - d))) with 1%nat by lia.
    replace (Z.to_nat (B + 1 - d)) with 0%nat by lia. simpl. field. lra.
Qed.

(** From the margin B on failing is rare. *)
Lemma rare_failures d : (B <= d)%Z -> chance d false = q ^ Z.to_nat (d - B) / (1 + q).
Proof.
  intros D. rewrite chance_fails. unfold chance. rewrite chance_of_passing by auto.
  rewrite tail_symmetric. unfold tail. destruct (Z.leb_spec 0 (- (B - d) - 1)).
  - f_equal. f_equal. lia.
  - replace (Z.to_nat (- (- (B - d) - 1))) with 1%nat by lia.
    replace (Z.to_nat (d - B)) with 0%nat by lia. simpl. field. lra.
Qed.

Variable Loss : Type.
Variable losses : list Loss.
Variables f f' g g' : Loss -> R.

Let pair := branch_pair Z window law (fun s => B <? s)%Z Loss f g.
Let pair' := branch_pair' Z window law (fun s => B <? s)%Z Loss f' g'.
Let profile d d' a := hockey (labelled Loss losses) (pair d) (pair' d') a.

(** Of all steps of the margin, the one from B to B + 1 is the worst, or else the
    noise alone is. *)
Theorem telling_margin d a :
  0 <= a ->
  profile (d - 1) d a
  <= Rmax (profile B (B + 1) a) (Rmax (hockey losses f f' a) (hockey losses g g' a)) /\
  profile d (d - 1) a
  <= Rmax (profile (B + 1) B a) (Rmax (hockey losses f f' a) (hockey losses g g' a)).
Proof.
  intros Ha. assert (P : forall m, 0 <= q ^ m <= 1)
    by (intros m; pose proof (power_positive m); pose proof (power_at_most_one m); lra).
  assert (wide : forall x u v w, x <= Rmax u v -> v <= w -> x <= Rmax u w).
  { intros x u v w X V. eapply Rle_trans; [exact X|]. apply Rmax_lub; [apply Rmax_l|].
    eapply Rle_trans; [exact V|apply Rmax_r]. }
  destruct (Z_le_gt_dec d (B + 1)).
  - assert (E : chance d true = q ^ Z.to_nat (B + 1 - d) * chance (B + 1) true).
    { rewrite !rare_passes by lia. replace (Z.to_nat (B + 1 - (B + 1))) with 0%nat by lia.
      simpl. field. lra. }
    assert (E' : chance (d - 1) true = q ^ Z.to_nat (B + 1 - d) * chance B true).
    { rewrite !rare_passes by lia.
      replace (Z.to_nat (B + 1 - (d - 1))) with (S (Z.to_nat (B + 1 - d))) by lia.
      replace (Z.to_nat (B + 1 - B)) with 1%nat by lia. rewrite power_step. simpl. field. lra. }
    split; (eapply wide; [|apply Rmax_l]);
      apply thinned_passes with (theta := q ^ Z.to_nat (B + 1 - d)); auto using law_distribution.
  - assert (E : chance d false = q ^ Z.to_nat (d - 1 - B) * chance (B + 1) false).
    { rewrite !rare_failures by lia. replace (Z.to_nat (B + 1 - B)) with 1%nat by lia.
      replace (Z.to_nat (d - B)) with (S (Z.to_nat (d - 1 - B))) by lia.
      rewrite power_step. simpl. field. lra. }
    assert (E' : chance (d - 1) false = q ^ Z.to_nat (d - 1 - B) * chance B false).
    { rewrite !rare_failures by lia. replace (Z.to_nat (B - B)) with 0%nat by lia.
      simpl. field. lra. }
    split; (eapply wide; [|apply Rmax_r]);
      apply thinned_failures with (theta := q ^ Z.to_nat (d - 1 - B)); auto using law_distribution.
Qed.

End Telling.

End Geometric.

(** *** Sanity: less noise is less private *)

(** At q = 1/2 no constant below 1/q = 2 will do, already for three outcomes. *)
Example geometric_is_tight : ~ indistinguishable (window 0 2) (19 / 10) (law (1 / 2) 0 2 0) (law (1 / 2) 0 2 1).
Proof.
  intros H. destruct (H 0%Z) as [A _]; [simpl; auto|].
  unfold law, upper, tail, hi in A. simpl in A. lra.
Qed.
