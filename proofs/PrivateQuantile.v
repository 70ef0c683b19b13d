(** A private quantile, from records to delta: every hypothesis of the theorems
    on Propose-Test-Release is met by an actual mechanism.

    Records are moved to a public range. The margin of the quantile is tested
    with discrete Laplace noise. If the test passes, the quantile is released
    with discrete Laplace noise for the proposal, and otherwise with noise for
    the whole range. *)

From Coq Require Import Reals ZArith List Lra Lia Bool Permutation.
From Prudent Require Import Finite Pure ProposeTestRelease Geometric.
From Prudent Require Quantile.
Import ListNotations.
Open Scope R_scope.

Section PrivateQuantile.

(** The public range of records, p = a/b, the proposal, and the margin's cap. *)
Variables low high a b : Z.
Variable tau : nat.
Variable cap : Z.
Hypothesis range : (low <= high)%Z.
Hypothesis fraction : (0 < a <= b)%Z.
Hypothesis cap_nonneg : (0 <= cap)%Z.

(** The noise of the test, of the robust value and of the fallback; the windows
    that noisy margins and values are moved to; the threshold. *)
Variables q r s : R.
Hypothesis q_decay : 0 < q < 1.
Hypothesis r_decay : 0 < r < 1.
Hypothesis s_decay : 0 < s < 1.
Variables margin_low value_low : Z.
Variables margin_width value_width : nat.
Hypothesis margin_window : (1 <= margin_width)%nat.
Hypothesis value_window : (1 <= value_width)%nat.
Variable threshold : Z.
Hypothesis threshold_inside : (margin_low <= threshold < hi margin_low margin_width)%Z.

Definition clamp (x : Z) : Z := Z.max low (Z.min high x).

Definition value (S : list Z) : Z := Quantile.quantile low a b (map clamp S).
Definition margin_of (S : list Z) : Z :=
  Quantile.margin low high a b (Z.of_nat tau) cap (map clamp S).

Definition margins := window margin_low margin_width.
Definition values := window value_low value_width.
Definition test := law q margin_low margin_width.
Definition passes (m : Z) : bool := (threshold <? m)%Z.
Definition robust (S : list Z) : Z -> R := law r value_low value_width (value S).
Definition fallback (S : list Z) : Z -> R := law s value_low value_width (value S).

(** One record more, or one less, at any place. *)
Definition neighbours (S T : list Z) : Prop :=
  exists x, Permutation S (x :: T) \/ Permutation T (x :: S).

Definition near (S T : list Z) : Prop := (Z.abs (value S - value T) <= Z.of_nat tau)%Z.

Definition diameter : nat := Z.to_nat (high - low).

(** Randomised response of e^epsilon = 1/c, which dominates each noise. *)
Definition told (c : R) : bool -> R := response (/ c).
Definition untold (c : R) : bool -> R := fun b => response (/ c) (negb b).

Lemma clamped S : Forall (fun x => low <= x <= high)%Z (map clamp S).
Proof. apply Forall_map. apply Forall_forall. intros x _. unfold clamp. lia. Qed.

Lemma value_range S : (low <= value S <= high)%Z.
Proof.
  split; [eapply Quantile.quantile_low|apply Quantile.quantile_high]; eauto using clamped.
Qed.

Lemma margin_nonneg S : (0 <= margin_of S)%Z.
Proof.
  unfold margin_of, Quantile.margin. generalize (Quantile.places low high (Z.of_nat tau)).
  intros us. induction us as [|u us IH]; cbn [map fold_right]; [auto|].
  assert (0 <= Quantile.cost a b (Z.of_nat tau) (map clamp S) u)%Z; [|lia].
  unfold Quantile.cost, Quantile.inside.
  pose proof (Quantile.count_nonneg (fun x => ((u <? x) && (x <=? u + Z.of_nat tau))%Z) (map clamp S)).
  pose proof (Quantile.far_nonneg a b
    (a * Quantile.right_of (Z.of_nat tau) u (map clamp S) - (b - a) * Quantile.left_of u (map clamp S))).
  lia.
Qed.

Lemma value_permutation S T : Permutation S T -> value S = value T.
Proof.
  intros P. apply (Quantile.quantile_permutation low high); [auto|apply clamped|].
  apply Permutation_map, P.
Qed.

Lemma margin_of_permutation S T : Permutation S T -> margin_of S = margin_of T.
Proof. intros P. apply Quantile.margin_permutation, Permutation_map, P. Qed.

Lemma margin_close S T : neighbours S T -> (Z.abs (margin_of S - margin_of T) <= 1)%Z.
Proof.
  intros [x [P|P]]; rewrite (margin_of_permutation _ _ P); unfold margin_of; cbn [map];
    pose proof (Quantile.margin_of_one_more low high a b (Z.of_nat tau) fraction ltac:(lia) cap
                  (clamp x)) as H.
  - apply H.
  - specialize (H (map clamp S)). lia.
Qed.

Lemma margin_safe S T :
  neighbours S T -> (0 < margin_of S \/ 0 < margin_of T)%Z -> near S T.
Proof.
  intros [x [P|P]]; unfold near; rewrite (margin_of_permutation _ _ P), (value_permutation _ _ P);
    intros M; unfold value, margin_of in *; cbn [map] in *.
  - apply (Quantile.quantile_moves low high a b (Z.of_nat tau) fraction ltac:(lia) cap); auto; [|tauto].
    apply (clamped (x :: T)).
  - rewrite <- Z.abs_opp, Z.opp_sub_distr, Z.add_comm.
    apply (Quantile.quantile_moves low high a b (Z.of_nat tau) fraction ltac:(lia) cap); auto.
    apply (clamped (x :: S)).
Qed.

Lemma any_two S T : (Z.abs (value S - value T) <= Z.of_nat diameter)%Z.
Proof. pose proof (value_range S). pose proof (value_range T). unfold diameter. lia. Qed.

(** The mechanism, and that it is one. *)
Definition releases_branch :=
  releasing_branch (list Z) Z Z margins margin_of test passes robust fallback.
Definition releases_margin :=
  releasing_margin (list Z) Z Z margin_of test passes robust fallback.

Theorem private_quantile_distribution S :
  distribution (list_prod branches values) (releases_branch S) /\
  distribution (list_prod margins values) (releases_margin S).
Proof.
  split; [apply releasing_branch_distribution|apply releasing_margin_distribution];
    intros; apply law_distribution; auto.
Qed.

Definition accidents := hockey (labelled bool answers)
  (case_one Z margins test passes bool (told (s ^ diameter)) (told (r ^ diameter)))
  (case_one' Z margins test passes bool (untold (s ^ diameter)) (untold (r ^ diameter))).

Definition step (d d' : Z) := hockey (labelled bool answers)
  (branch_pair Z margins test passes bool (told (s ^ diameter)) (told (r ^ tau)) d)
  (branch_pair' Z margins test passes bool (untold (s ^ diameter)) (untold (r ^ tau)) d').

Definition noise (c : R) := hockey answers (told c) (untold c).

(** Only the branch is revealed: delta is at most the worst of five explicit
    profiles, at every epsilon, for every two neighbours. *)
Theorem private_quantile_branch S T epsilon :
  neighbours S T ->
  hockey (list_prod branches values) (releases_branch S) (releases_branch T) (exp epsilon)
  <= Rmax (accidents (exp epsilon))
       (Rmax (Rmax (step threshold (threshold + 1) (exp epsilon))
                   (step (threshold + 1) threshold (exp epsilon)))
             (Rmax (noise (s ^ diameter) (exp epsilon)) (noise (r ^ tau) (exp epsilon)))).
Proof.
  intros N. assert (Ha : 0 <= exp epsilon) by (left; apply exp_pos).
  destruct (ptr_releasing_the_branch (list Z) Z values Z margins margin_of test passes robust fallback)
    with (neighbours := neighbours) (near := near) (losses := answers)
         (f := told (s ^ diameter)) (f' := untold (s ^ diameter))
         (g := told (r ^ tau)) (g' := untold (r ^ tau))
         (h := told (r ^ diameter)) (h' := untold (r ^ diameter))
         (S := S) (T := T) (epsilon := epsilon)
    as (d & d' & D & D' & C & H);
    auto using margin_nonneg, margin_close, margin_safe;
    try (intros; apply law_distribution; auto).
  - intros; apply geometric_dominated; auto using any_two.
  - intros; apply geometric_dominated; auto.
  - intros; apply geometric_dominated; auto using any_two.
  - unfold releases_branch. eapply Rle_trans; [exact H|]. apply Rmax_lub; [apply Rmax_l|].
    eapply Rle_trans; [|apply Rmax_r].
    change (step d d' (exp epsilon) <= Rmax (Rmax (step threshold (threshold + 1) (exp epsilon))
      (step (threshold + 1) threshold (exp epsilon)))
      (Rmax (noise (s ^ diameter) (exp epsilon)) (noise (r ^ tau) (exp epsilon)))).
    destruct (Z.eq_dec d d') as [<-|].
    { eapply Rle_trans; [|apply Rmax_r]. apply equal_margins; auto.
      intros; apply law_distribution; auto. }
    pose proof (telling_margin q q_decay margin_low margin_width margin_window threshold
      threshold_inside bool answers (told (s ^ diameter)) (untold (s ^ diameter))
      (told (r ^ tau)) (untold (r ^ tau)) (Z.max d d') (exp epsilon) Ha) as [U V].
    destruct (Z.eq_dec d' (d + 1)) as [->|].
    + replace (Z.max d (d + 1)) with (d + 1)%Z in U by lia.
      replace (d + 1 - 1)%Z with d in U by lia.
      eapply Rle_trans; [exact U|]. apply Rmax_lub; [|apply Rmax_r].
      eapply Rle_trans; [|apply Rmax_l]. apply Rmax_l.
    + assert (d = d' + 1)%Z as -> by lia.
      replace (Z.max (d' + 1) d') with (d' + 1)%Z in V by lia.
      replace (d' + 1 - 1)%Z with d' in V by lia.
      eapply Rle_trans; [exact V|]. apply Rmax_lub; [|apply Rmax_r].
      eapply Rle_trans; [|apply Rmax_l]. apply Rmax_r.
Qed.

(** The noisy margin is revealed: randomised response of the test, beside the
    weaker of the two kinds of noise. *)
Theorem private_quantile_margin c S T epsilon :
  0 < c <= 1 -> c <= s ^ diameter -> c <= r ^ tau ->
  neighbours S T ->
  hockey (list_prod margins values) (releases_margin S) (releases_margin T) (exp epsilon)
  <= Rmax (accidents (exp epsilon))
          (hockey (list_prod answers answers) (product (told q) (told c)) (product (untold q) (untold c))
             (exp epsilon)).
Proof.
  intros Hc Hs Hr N.
  assert (inv : forall x, 0 < x <= 1 -> 1 <= / x)
    by (intros x X; rewrite <- Rinv_1 at 1; apply Rinv_le_contravar; lra).
  assert (weaker : forall x, c <= x <= 1 -> dominated answers (told x) (untold x) answers (told c) (untold c)).
  { intros x X. apply randomised_response_dominates; auto.
    - apply response_distribution. apply inv. lra.
    - apply swapped_response_distribution. apply inv. lra.
    - assert (I : 1 <= / x) by (apply inv; lra). assert (J : 1 <= / c) by (apply inv; lra).
      assert (K : / x <= / c) by (apply Rinv_le_contravar; lra).
      assert (P : 0 < / (1 + / x)) by (apply Rinv_0_lt_compat; lra).
      intros b' _. unfold told, untold, response, Rdiv. destruct b'; simpl;
        split; rewrite <- Rmult_assoc; apply Rmult_le_compat_r; try lra; nra. }
  pose proof (power_at_most_one s s_decay diameter). pose proof (power_at_most_one r r_decay tau).
  apply ptr_releasing_the_margin with (neighbours := neighbours) (near := near)
    (g := told (r ^ tau)) (g' := untold (r ^ tau));
    auto using margin_nonneg, margin_close, margin_safe;
    try (intros; apply law_distribution; auto);
    try (intros; apply geometric_dominated; auto using any_two).
  - intros d d' C. pose proof (geometric_dominated q q_decay margin_low margin_width margin_window
      1 d d' ltac:(simpl; lia)) as G.
    unfold told, untold. rewrite pow_1 in G. exact G.
  - apply response_distribution. apply inv. lra.
  - apply (swapped_response_distribution (/ c)). apply inv. lra.
Qed.

End PrivateQuantile.

(** The hypotheses can be met: a median of records from 0 to 100. *)
Example a_private_median S T epsilon :
  neighbours S T ->
  hockey (list_prod branches (values (-100) 300))
    (releases_branch 0 100 1 2 3 40 (1 / 2) (9 / 10) (99 / 100) (-40) (-100) 100 300 20 S)
    (releases_branch 0 100 1 2 3 40 (1 / 2) (9 / 10) (99 / 100) (-40) (-100) 100 300 20 T)
    (exp epsilon)
  <= Rmax (accidents 0 100 (1 / 2) (9 / 10) (99 / 100) (-40) 100 20 (exp epsilon))
       (Rmax (Rmax (step 0 100 3 (1 / 2) (9 / 10) (99 / 100) (-40) 100 20 20 21 (exp epsilon))
                   (step 0 100 3 (1 / 2) (9 / 10) (99 / 100) (-40) 100 20 21 20 (exp epsilon)))
             (Rmax (noise ((99 / 100) ^ diameter 0 100) (exp epsilon))
                   (noise ((9 / 10) ^ 3) (exp epsilon)))).
Proof.
  intros N. apply private_quantile_branch; auto; try lra; try lia. unfold hi. simpl. lia.
Qed.
