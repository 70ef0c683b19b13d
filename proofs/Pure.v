(** Mechanisms of bounded privacy loss: the pairs that dominate all of them. *)

From Coq Require Import Reals List Lra Lia Bool.
From Prudent Require Import Finite.
Import ListNotations.
Open Scope R_scope.

(** A mechanism whose masses lie between those of two extreme directions is a
    mixture of them, outcome by outcome. *)
Lemma between_two_rays {A} (l : list A) P Q u1 u2 v1 v2 (alpha beta : A -> R) a :
  (forall x, In x l -> 0 <= alpha x /\ 0 <= beta x /\
     P x = alpha x * u1 + beta x * v1 /\ Q x = alpha x * u2 + beta x * v2) ->
  hockey l P Q a
  <= sum l alpha * positive_part (u1 - a * u2) + sum l beta * positive_part (v1 - a * v2).
Proof.
  intros H. rewrite <- !sum_scale_right, <- sum_plus. apply sum_le. intros x X.
  destruct (H x X) as (A0 & B0 & -> & ->).
  rewrite <- !positive_part_scale by auto.
  eapply Rle_trans; [|apply positive_part_plus]. right. f_equal. ring.
Qed.

(** ** Pure epsilon: randomised response *)

(** [truth c true] answers truthfully: c = e^epsilon times as often as not. *)
Definition response (c : R) (b : bool) : R := (if b then c else 1) / (1 + c).
Definition answers : list bool := [true; false].

Lemma response_distribution c : 1 <= c -> distribution answers (response c).
Proof.
  intros C. split.
  - intros b _. unfold response. apply Rmult_le_pos; [destruct b; lra|].
    left. apply Rinv_0_lt_compat. lra.
  - unfold response, sum, answers. simpl. field. lra.
Qed.

Lemma swapped_response_distribution c :
  1 <= c -> distribution answers (fun b => response c (negb b)).
Proof.
  intros C. destruct (response_distribution c C) as [N S]. split.
  - intros b _. apply N. destruct b; simpl; auto.
  - unfold sum, answers in *. simpl in *. lra.
Qed.

Definition indistinguishable {A} (l : list A) (c : R) (P Q : A -> R) : Prop :=
  forall x, In x l -> P x <= c * Q x /\ Q x <= c * P x.

(** Randomised response dominates every mechanism that is as private. *)
Theorem randomised_response_dominates {A} (l : list A) c P Q :
  1 <= c -> distribution l P -> distribution l Q -> indistinguishable l c P Q ->
  dominated l P Q answers (response c) (fun b => response c (negb b)).
Proof.
  intros C [NP SP] [NQ SQ] I a Ha.
  assert (E : hockey answers (response c) (fun b => response c (negb b)) a
    = / (1 + c) * (positive_part (c - a) + positive_part (1 - a * c))).
  { unfold hockey, sum, answers, response. simpl.
    rewrite Rmult_plus_distr_l, <- !positive_part_scale by (left; apply Rinv_0_lt_compat; lra).
    rewrite Rplus_0_r. f_equal; f_equal; field; lra. }
  rewrite E. destruct (Req_dec c 1) as [->|Ne].
  - assert (G : hockey l P Q a <= positive_part (1 - a)).
    { replace (positive_part (1 - a)) with (sum l P * positive_part (1 - a)) by (rewrite SP; ring).
      rewrite <- sum_scale_right. apply sum_le. intros x X. destruct (I x X).
      rewrite <- positive_part_scale by (apply NP; auto).
      right. f_equal. assert (P x = Q x) as -> by lra. ring. }
    rewrite Rmult_1_r. lra.
  - set (alpha := fun x => (c * P x - Q x) * / (c * c - 1)).
    set (beta := fun x => (c * Q x - P x) * / (c * c - 1)).
    assert (K : 0 < / (c * c - 1)) by (apply Rinv_0_lt_compat; nra).
    assert (F : c * c - 1 <> 0) by nra.
    eapply Rle_trans; [apply (between_two_rays l P Q c 1 1 c alpha beta a)|].
    + intros x X. destruct (I x X). unfold alpha, beta.
      repeat split; try (apply Rmult_le_pos; lra); field; auto.
    + assert (Sa : sum l alpha = / (1 + c)).
      { unfold alpha. rewrite sum_scale_right.
        replace (sum l (fun x => c * P x - Q x)) with (c * sum l P + -1 * sum l Q)
          by (clear; induction l; simpl; lra).
        rewrite SP, SQ. field. split; [lra|auto]. }
      assert (Sb : sum l beta = / (1 + c)).
      { unfold beta. rewrite sum_scale_right.
        replace (sum l (fun x => c * Q x - P x)) with (c * sum l Q + -1 * sum l P)
          by (clear; induction l; simpl; lra).
        rewrite SP, SQ. field. split; [lra|auto]. }
      rewrite Sa, Sb. right. rewrite !Rmult_1_r. ring.
Qed.

(** Pure privacy is a profile of zero at epsilon. *)
Lemma indistinguishable_profile {A} (l : list A) c P Q :
  indistinguishable l c P Q -> hockey l P Q c = 0 /\ hockey l Q P c = 0.
Proof.
  intros I; split; unfold hockey; rewrite <- (sum_zero l); apply sum_ext; intros x X;
    destruct (I x X); apply positive_part_of_nonpos; lra.
Qed.

(** ** A bounded range of the loss *)

(** The profile of `BoundedRangePair`, at a = e^x with r = e^epsilon. *)
Definition bounded_range_profile (r a : R) : R := (1 - sqrt (a / r)) ^ 2 / (1 - / r).

(** The losses of all outcomes lie in a range of length epsilon = ln r. *)
Definition bounded_range {A} (l : list A) (r : R) (P Q : A -> R) : Prop :=
  exists k, 0 < k /\ forall x, In x l -> k * Q x <= P x <= r * k * Q x.

Theorem bounded_range_dominates {A} (l : list A) r P Q a :
  1 < r -> distribution l P -> distribution l Q -> bounded_range l r P Q ->
  0 <= a <= r -> hockey l P Q a <= bounded_range_profile r a.
Proof.
  intros R1 [NP SP] [NQ SQ] (k & k0 & I) Ha.
  set (K := r * k) in *.
  assert (kK : k < K) by (unfold K; nra).
  assert (k1 : k <= 1).
  { rewrite <- SP. rewrite <- (Rmult_1_r k), <- SQ, <- sum_scale. apply sum_le.
    intros x X. apply (I x X). }
  assert (K1 : 1 <= K).
  { rewrite <- SP. rewrite <- (Rmult_1_r K), <- SQ, <- sum_scale. apply sum_le.
    intros x X. apply (I x X). }
  set (alpha := fun x => (P x - k * Q x) * / (K - k)).
  set (beta := fun x => (K * Q x - P x) * / (K - k)).
  assert (H : hockey l P Q a
    <= sum l alpha * positive_part (K - a * 1) + sum l beta * positive_part (k - a * 1)).
  { apply between_two_rays. intros x X. destruct (I x X).
    assert (0 < / (K - k)) by (apply Rinv_0_lt_compat; lra). unfold alpha, beta.
    repeat split; try (apply Rmult_le_pos; lra); field; lra. }
  assert (Sa : sum l alpha = (1 - k) / (K - k)).
  { unfold alpha. rewrite sum_scale_right.
    replace (sum l (fun x => P x - k * Q x)) with (sum l P + - k * sum l Q)
      by (clear; induction l; simpl; lra). rewrite SP, SQ. field. lra. }
  assert (Sb : sum l beta = (K - 1) / (K - k)).
  { unfold beta. rewrite sum_scale_right.
    replace (sum l (fun x => K * Q x - P x)) with (K * sum l Q + -1 * sum l P)
      by (clear; induction l; simpl; lra). rewrite SP, SQ. field. lra. }
  rewrite Sa, Sb, !Rmult_1_r in H.
  (* With s = sqrt (a / r), a = r s s. *)
  unfold bounded_range_profile. set (s := sqrt (a / r)).
  assert (s0 : 0 <= s) by apply sqrt_pos.
  assert (ss : a = r * (s * s)).
  { unfold s. rewrite sqrt_sqrt by (apply Rmult_le_pos; [lra|left; apply Rinv_0_lt_compat; lra]).
    field. lra. }
  assert (d0 : 0 < 1 - / r).
  { assert (/ r < / 1) by (apply Rinv_lt_contravar; lra). rewrite Rinv_1 in *. lra. }
  eapply Rle_trans; [exact H|]. clear H Sa Sb.
  apply Rmult_le_reg_r with (K - k); [lra|].
  replace (((1 - k) / (K - k) * positive_part (K - a)
            + (K - 1) / (K - k) * positive_part (k - a)) * (K - k))
    with ((1 - k) * positive_part (K - a) + (K - 1) * positive_part (k - a)) by (field; lra).
  replace ((1 - s) ^ 2 / (1 - / r) * (K - k)) with ((1 - s) ^ 2 * K)
    by (unfold K; field; lra).
  destruct (Rle_dec a k) as [below|above].
  - rewrite !positive_part_of_nonneg by lra. rewrite ss. unfold K in *.
    assert (0 <= k * (r * s - 1) ^ 2) by (apply Rmult_le_pos; [lra|apply pow2_ge_0]). lra.
  - rewrite (positive_part_of_nonpos (k - a)) by lra.
    destruct (Rle_dec a K) as [inside|beyond].
    + rewrite positive_part_of_nonneg by lra. rewrite ss. unfold K in *.
      assert (0 <= r * (k - s) ^ 2) by (apply Rmult_le_pos; [lra|apply pow2_ge_0]). lra.
    + rewrite (positive_part_of_nonpos (K - a)) by lra.
      assert (0 <= (1 - s) ^ 2 * K) by (apply Rmult_le_pos; [apply pow2_ge_0|lra]). lra.
Qed.

(** A range of length epsilon is epsilon-DP. *)
Theorem bounded_range_is_pure {A} (l : list A) r P Q :
  1 <= r -> distribution l P -> distribution l Q -> bounded_range l r P Q ->
  indistinguishable l r P Q.
Proof.
  intros R1 [NP SP] [NQ SQ] (k & k0 & I) x X.
  assert (k1 : k <= 1).
  { rewrite <- SP. rewrite <- (Rmult_1_r k), <- SQ, <- sum_scale. apply sum_le.
    intros y Y. apply (I y Y). }
  assert (K1 : 1 <= r * k).
  { rewrite <- SP. rewrite <- (Rmult_1_r (r * k)), <- SQ, <- sum_scale. apply sum_le.
    intros y Y. apply (I y Y). }
  destruct (I x X). pose proof (NP x X). pose proof (NQ x X). split.
  - assert (r * k * Q x <= r * 1 * Q x) by (apply Rmult_le_compat_r; nra). lra.
  - assert (r * (k * Q x) <= r * P x) by (apply Rmult_le_compat_l; lra).
    assert (1 * Q x <= r * k * Q x) by (apply Rmult_le_compat_r; lra). lra.
Qed.
