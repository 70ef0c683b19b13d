(** The pure part of a budget's filter: mechanisms chosen in view of earlier answers.

    An analyst asks a question, sees the answer, chooses the next question and
    its epsilon, or stops. A charge is admitted while the sum of all epsilons is
    within the budget. Then the whole transcript is as private as the budget. *)

From Coq Require Import Reals List Lra Lia Bool.
From Prudent Require Import Finite Pure.
Import ListNotations.
Open Scope R_scope.

Section Filter.

Variable Answer : Type.
Variable answers : list Answer.

(** The next mechanism, on the data with the record and without it, its epsilon,
    and how to go on after each answer. *)
Inductive analyst :=
  | Stop
  | Ask (P Q : Answer -> R) (epsilon : R) (next : Answer -> analyst).

(** Each mechanism is as private as it says. *)
Fixpoint honest (a : analyst) : Prop :=
  match a with
  | Stop => True
  | Ask P Q epsilon next =>
      distribution answers P /\ distribution answers Q /\
      indistinguishable answers (exp epsilon) P Q /\ forall x, honest (next x)
  end.

(** The filter: whatever the answers, what is charged stays within the budget. *)
Fixpoint admitted (a : analyst) (budget : R) : Prop :=
  match a with
  | Stop => 0 <= budget
  | Ask _ _ epsilon next => forall x, admitted (next x) (budget - epsilon)
  end.

(** All transcripts, and the probability of one. *)
Fixpoint transcripts (a : analyst) : list (list Answer) :=
  match a with
  | Stop => [[]]
  | Ask _ _ _ next => flat_map (fun x => map (cons x) (transcripts (next x))) answers
  end.

Fixpoint chance (with_record : bool) (a : analyst) (t : list Answer) : R :=
  match a, t with
  | Stop, [] => 1
  | Ask P Q _ next, x :: t' => (if with_record then P else Q) x * chance with_record (next x) t'
  | _, _ => 0
  end.

Lemma sum_flat_map {A B} (l : list A) (g : A -> list B) f :
  sum (flat_map g l) f = sum l (fun x => sum (g x) f).
Proof. induction l; simpl; auto. rewrite sum_app, IHl. reflexivity. Qed.

Lemma chance_nonneg b a t : honest a -> In t (transcripts a) -> 0 <= chance b a t.
Proof.
  revert t; induction a as [|P Q epsilon next IH]; intros t H I.
  - destruct I as [<-|[]]. simpl. lra.
  - destruct H as ([NP _] & [NQ _] & _ & H). apply in_flat_map in I. destruct I as (x & X & I).
    apply in_map_iff in I. destruct I as (t' & <- & I). simpl.
    apply Rmult_le_pos; [destruct b; auto|apply IH; auto].
Qed.

(** Transcripts are a distribution. *)
Theorem transcripts_distribution b a : honest a -> distribution (transcripts a) (chance b a).
Proof.
  intros H. split; [intros t I; apply chance_nonneg; auto|].
  induction a as [|P Q epsilon next IH]; [simpl; lra|].
  destruct H as ([_ SP] & [_ SQ] & _ & H). simpl transcripts. rewrite sum_flat_map.
  transitivity (sum answers (if b then P else Q)); [|destruct b; auto].
  apply sum_ext. intros x _. rewrite sum_map. cbn [chance]. rewrite sum_scale, IH by auto. ring.
Qed.

(** The theorem of the filter. *)
Theorem filter_is_private a budget :
  honest a -> admitted a budget ->
  indistinguishable (transcripts a) (exp budget) (chance true a) (chance false a).
Proof.
  revert budget; induction a as [|P Q epsilon next IH]; intros budget H W t I.
  - destruct I as [<-|[]]. simpl in *. assert (1 <= exp budget); [|lra].
    destruct (Req_dec budget 0) as [->|]; [rewrite exp_0; lra|].
    rewrite <- exp_0. left. apply exp_increasing. lra.
  - destruct H as ([NP _] & [NQ _] & D & H). apply in_flat_map in I. destruct I as (x & X & I).
    apply in_map_iff in I. destruct I as (t' & <- & I). cbn [chance].
    destruct (IH x (budget - epsilon) (H x) (W x) t' I) as [A B]. destruct (D x X) as [E F].
    pose proof (chance_nonneg true (next x) t' (H x) I).
    pose proof (chance_nonneg false (next x) t' (H x) I).
    pose proof (exp_pos epsilon). pose proof (exp_pos (budget - epsilon)).
    assert (G : exp budget = exp epsilon * exp (budget - epsilon))
      by (rewrite <- exp_plus; f_equal; ring).
    rewrite G. split.
    + apply Rle_trans with (exp epsilon * Q x * (exp (budget - epsilon) * chance false (next x) t')).
      * apply Rmult_le_compat; auto.
      * right. ring.
    + apply Rle_trans with (exp epsilon * P x * (exp (budget - epsilon) * chance true (next x) t')).
      * apply Rmult_le_compat; auto.
      * right. ring.
Qed.

End Filter.

(** *** Sanity: two questions that both tell, at a budget for one *)

(** Randomised response of e^epsilon = 3, asked twice: the transcript of two
    truthful answers is 9 times as likely, so a budget of ln 3 would not do. *)
Example twice_costs_twice :
  let ask next := Ask bool (response 3) (fun b => response 3 (negb b)) (ln 3) (fun _ => next) in
  let both := ask (ask (Stop bool)) in
  ~ indistinguishable (transcripts bool answers both) 3 (chance bool true both) (chance bool false both).
Proof.
  cbv zeta. intros H. destruct (H [true; true]) as [A _]; [simpl; auto|].
  unfold response in A. simpl in A. lra.
Qed.

(** And a budget of twice ln 3 does. *)
Example an_admitted_analyst :
  let ask next := Ask bool (response 3) (fun b => response 3 (negb b)) (ln 3) (fun _ => next) in
  let both := ask (ask (Stop bool)) in
  honest bool answers both /\ admitted bool both (2 * ln 3).
Proof.
  assert (one : distribution answers (response 3)) by (apply response_distribution; lra).
  assert (other : distribution answers (fun b => response 3 (negb b)))
    by (apply swapped_response_distribution; lra).
  assert (close : indistinguishable answers (exp (ln 3)) (response 3) (fun b => response 3 (negb b))).
  { rewrite exp_ln by lra. intros b _. unfold response. destruct b; simpl; lra. }
  cbv zeta. cbn [honest admitted]. split; [|intros; lra].
  split; [exact one|]. split; [exact other|]. split; [exact close|]. intros _.
  split; [exact one|]. split; [exact other|]. split; [exact close|]. auto.
Qed.
