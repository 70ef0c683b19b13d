(** Poisson sampling: each record takes part with probability q, by itself. *)

From Coq Require Import Reals List Lra Lia Bool.
From Prudent Require Import Finite.
Import ListNotations.
Open Scope R_scope.

Definition mixed {A} (q : R) (P Q : A -> R) (x : A) : R := (1 - q) * P x + q * Q x.

Lemma mixed_distribution {A} (l : list A) q P Q :
  0 <= q <= 1 -> distribution l P -> distribution l Q -> distribution l (mixed q P Q).
Proof.
  intros Hq [NP SP] [NQ SQ]. split.
  - intros x X. pose proof (NP x X). pose proof (NQ x X). unfold mixed.
    assert (0 <= (1 - q) * P x) by (apply Rmult_le_pos; lra).
    assert (0 <= q * Q x) by (apply Rmult_le_pos; lra). lra.
  - unfold mixed. rewrite sum_plus, !sum_scale, SP, SQ. lra.
Qed.

(** *** The profile of a sampled pair: P without the record, Q with it *)

(** Removing a record. At a = e^epsilon. *)
Definition removing (q : R) (h : R -> R) (a : R) : R :=
  if Rle_dec (1 - q) a then q * h ((a - 1 + q) / q) else 1 - a.

(** Adding a record; h is the profile of P against Q. *)
Definition adding (q : R) (h : R -> R) (a : R) : R :=
  let c := 1 - a * (1 - q) in if Rlt_dec 0 c then c * h (a * q / c) else 0.

Theorem sampled_removing {A} (l : list A) q P Q a :
  0 < q <= 1 -> distribution l P -> distribution l Q ->
  hockey l (mixed q P Q) P a = removing q (hockey l Q P) a.
Proof.
  intros Hq [NP SP] [NQ SQ]. unfold removing, hockey, mixed. destruct (Rle_dec (1 - q) a).
  - rewrite <- sum_scale. apply sum_ext. intros x _.
    rewrite <- positive_part_scale by lra. f_equal. field. lra.
  - rewrite (sum_ext l _ (fun x => (1 - q - a) * P x + q * Q x)).
    + rewrite sum_plus, !sum_scale, SP, SQ. lra.
    + intros x X. pose proof (NP x X). pose proof (NQ x X). rewrite positive_part_of_nonneg; [ring|].
      assert (0 <= (1 - q - a) * P x) by (apply Rmult_le_pos; lra).
      assert (0 <= q * Q x) by (apply Rmult_le_pos; lra). lra.
Qed.

Theorem sampled_adding {A} (l : list A) q P Q a :
  0 < q <= 1 -> 0 <= a -> nonnegative l P -> nonnegative l Q ->
  hockey l P (mixed q P Q) a = adding q (hockey l P Q) a.
Proof.
  intros Hq Ha NP NQ. unfold adding, hockey, mixed. destruct (Rlt_dec 0 (1 - a * (1 - q))).
  - rewrite <- sum_scale. apply sum_ext. intros x _.
    rewrite <- positive_part_scale by lra. f_equal. field. lra.
  - rewrite <- (sum_zero l). apply sum_ext. intros x X. apply positive_part_of_nonpos.
    pose proof (NP x X). pose proof (NQ x X).
    assert (0 <= (a * (1 - q) - 1) * P x) by (apply Rmult_le_pos; lra).
    assert (0 <= a * q * Q x) by (apply Rmult_le_pos; [apply Rmult_le_pos; lra|auto]). lra.
Qed.

(** Both grow with h: the larger of two profiles can be taken before sampling. *)
Lemma removing_monotone q h k a :
  0 < q <= 1 -> (forall b, 0 <= b -> h b <= k b) -> removing q h a <= removing q k a.
Proof.
  intros Hq H. unfold removing. destruct (Rle_dec (1 - q) a); [|lra].
  apply Rmult_le_compat_l; [lra|]. apply H. apply Rmult_le_pos; [lra|].
  left. apply Rinv_0_lt_compat. lra.
Qed.

Lemma adding_monotone q h k a :
  0 < q <= 1 -> 0 <= a -> (forall b, 0 <= b -> h b <= k b) -> adding q h a <= adding q k a.
Proof.
  intros Hq Ha H. unfold adding. destruct (Rlt_dec 0 (1 - a * (1 - q))); [|lra].
  apply Rmult_le_compat_l; [lra|]. apply H. apply Rmult_le_pos; [apply Rmult_le_pos; lra|].
  left. apply Rinv_0_lt_compat. lra.
Qed.

(** *** A mechanism on sampled batches *)

Section Batches.

Variables Record Answer : Type.
Variable outputs : list Answer.
Variable M : list Record -> Answer -> R.
Hypothesis M_law : forall batch, distribution outputs (M batch).
Variable q : R.
Hypothesis rate : 0 < q <= 1.

(** Each record of the data set joins the batch with probability q. *)
Fixpoint sampled (data batch : list Record) : Answer -> R :=
  match data with
  | [] => M batch
  | x :: data' => mixed q (sampled data' batch) (sampled data' (x :: batch))
  end.

Theorem sampled_distribution data batch : distribution outputs (sampled data batch).
Proof.
  revert batch; induction data; intros batch; simpl; auto. apply mixed_distribution; auto; lra.
Qed.

Lemma hockey_mixed P Q P' Q' a :
  hockey outputs (mixed q P Q) (mixed q P' Q') a
  <= (1 - q) * hockey outputs P P' a + q * hockey outputs Q Q' a.
Proof.
  unfold hockey, mixed. rewrite <- !sum_scale, <- sum_plus. apply sum_le. intros y _.
  rewrite <- !positive_part_scale by lra. eapply Rle_trans; [|apply positive_part_plus].
  right. f_equal. ring.
Qed.

(** h bounds the profile of one more record, x, at any place of any batch. *)
Variable h : R -> R.
Variable x : Record.

Lemma rearranged (P Q P' Q' : Answer -> R) y :
  mixed q (mixed q P Q) (mixed q P' Q') y = mixed q (mixed q P P') (mixed q Q Q') y.
Proof. unfold mixed. ring. Qed.

Lemma hockey_ext P Q P' Q' a :
  (forall y, P y = P' y) -> (forall y, Q y = Q' y) -> hockey outputs P Q a = hockey outputs P' Q' a.
Proof. intros E F. apply sum_ext. intros y _. rewrite E, F. reflexivity. Qed.

Lemma removing_from_any_data bound data batch rest a :
  (forall b, hockey outputs (mixed q (M (b ++ rest)) (M (b ++ x :: rest))) (M (b ++ rest)) a <= bound) ->
  hockey outputs (mixed q (sampled data (batch ++ rest)) (sampled data (batch ++ x :: rest)))
                 (sampled data (batch ++ rest)) a <= bound.
Proof.
  intros B. revert batch; induction data as [|z data IH]; intros batch; [apply B|].
  simpl. erewrite hockey_ext; [|intros; apply rearranged|reflexivity].
  eapply Rle_trans; [apply hockey_mixed|].
  pose proof (IH batch). pose proof (IH (z :: batch)) as J. simpl in J. nra.
Qed.

Lemma adding_to_any_data bound data batch rest a :
  (forall b, hockey outputs (M (b ++ rest)) (mixed q (M (b ++ rest)) (M (b ++ x :: rest))) a <= bound) ->
  hockey outputs (sampled data (batch ++ rest))
                 (mixed q (sampled data (batch ++ rest)) (sampled data (batch ++ x :: rest))) a <= bound.
Proof.
  intros B. revert batch; induction data as [|z data IH]; intros batch; [apply B|].
  simpl. erewrite hockey_ext; [|reflexivity|intros; apply rearranged].
  eapply Rle_trans; [apply hockey_mixed|].
  pose proof (IH batch). pose proof (IH (z :: batch)) as J. simpl in J. nra.
Qed.

(** A data set with the record x, at any place, against the one without it. *)
Theorem poisson_sampling_removing before after epsilon :
  (forall b c a, 0 <= a -> hockey outputs (M (b ++ x :: c)) (M (b ++ c)) a <= h a) ->
  hockey outputs (sampled (before ++ x :: after) []) (sampled (before ++ after) []) (exp epsilon)
  <= removing q h (exp epsilon).
Proof.
  intros H. generalize (@nil Record) as batch. induction before as [|z before IH]; intros batch.
  - apply (removing_from_any_data _ after [] batch). intros b.
    rewrite sampled_removing; auto. apply removing_monotone; auto.
  - simpl. eapply Rle_trans; [apply hockey_mixed|].
    pose proof (IH batch). pose proof (IH (z :: batch)). nra.
Qed.

(** The one without it against the one with it. *)
Theorem poisson_sampling_adding before after epsilon :
  (forall b c a, 0 <= a -> hockey outputs (M (b ++ c)) (M (b ++ x :: c)) a <= h a) ->
  hockey outputs (sampled (before ++ after) []) (sampled (before ++ x :: after) []) (exp epsilon)
  <= adding q h (exp epsilon).
Proof.
  intros H. assert (0 <= exp epsilon) by (left; apply exp_pos).
  generalize (@nil Record) as batch. induction before as [|z before IH]; intros batch.
  - apply (adding_to_any_data _ after [] batch). intros b.
    rewrite sampled_adding; try apply M_law; auto. apply adding_monotone; auto.
  - simpl. eapply Rle_trans; [apply hockey_mixed|].
    pose proof (IH batch). pose proof (IH (z :: batch)). nra.
Qed.

End Batches.

(** *** Sanity: sampling is no free lunch *)

(** A pair that reveals all, sampled at 1/2, has delta 1/2 at every epsilon >= 0. *)
Example sampled_reveals a :
  1 <= a -> removing (1 / 2) (fun _ => 1) a = 1 / 2.
Proof. intros A. unfold removing. destruct (Rle_dec (1 - 1 / 2) a); lra. Qed.

(** Randomised response of e^epsilon = 3, sampled at 1/2: q h(a/q), without the
    shift, would claim delta = 0 at a = 3/2, where the truth is 1/8. *)
Example the_shift_is_needed :
  let h a := positive_part ((3 - a) / 4) + positive_part ((1 - 3 * a) / 4) in
  removing (1 / 2) h (3 / 2) = 1 / 8 /\ (1 / 2) * h (3 / 2 / (1 / 2)) = 0.
Proof.
  cbv zeta. unfold removing. destruct (Rle_dec (1 - 1 / 2) (3 / 2)); [|lra].
  unfold positive_part, Rmax.
  repeat match goal with |- context [Rle_dec ?x ?y] => destruct (Rle_dec x y) end; lra.
Qed.
