(** Privacy of released counts: discrete Laplace noise on all whole numbers, of one scale
    for the counts of cells and of another for the numbers of records. *)

From Coq Require Import Reals ZArith List Lra Lia Bool.
From Prudent Require Import Finite Infinite Geometric DiscreteLaplace.
From Prudent Require Counts.
Import ListNotations.
Open Scope R_scope.

(** ** Released tables *)

Section Release.

Variables cells totals : R.  (* e^(-1/scale) of the noise of each *)
Hypothesis cells_decay : 0 < cells < 1.
Hypothesis totals_decay : 0 < totals < 1.

Definition class_law (one y : list Z * Z) : R :=
  vector_law cells (fst one) (fst y) * laplace totals (snd one) (snd y).

(** The law of what is released of a table of exact counts. *)
Fixpoint released_law (t y : Counts.table) : R :=
  match t, y with
  | [], [] => 1
  | one :: t', other :: y' => class_law one other * released_law t' y'
  | _, _ => 0
  end.

Lemma class_law_nonneg one y : 0 <= class_law one y.
Proof.
  apply Rmult_le_pos; [apply vector_law_nonneg; auto|]. apply Rlt_le, laplace_positive; auto.
Qed.

Lemma released_law_nonneg t y : 0 <= released_law t y.
Proof.
  revert y; induction t; intros [|x y]; simpl; try lra. apply Rmult_le_pos; auto using class_law_nonneg.
Qed.

(** It is a distribution, *)
Theorem released_law_total t : total (released_law t) 1.
Proof.
  induction t as [|one t IH].
  - apply total_ext with (2 := total_nil). intros [|x y]; reflexivity.
  - rewrite <- (Rmult_1_r 1). apply total_ext with (f := fun y =>
      match y with [] => 0 | x :: y' => class_law one x * released_law t y' end).
    + intros [|x y]; reflexivity.
    + apply total_cons; auto using class_law_nonneg, released_law_nonneg.
      rewrite <- (Rmult_1_r 1). apply (total_product (vector_law cells (fst one)) (laplace totals (snd one))).
      * intros y. apply vector_law_nonneg; auto.
      * intros x. apply Rlt_le, laplace_positive; auto.
      * apply vector_law_total; auto.
      * apply laplace_law; auto.
Qed.

(** which is that of the noise of no records, added to the counts. *)
Definition blank (t : Counts.table) : Counts.table :=
  map (fun one => (map (fun _ => 0%Z) (fst one), 0%Z)) t.

Lemma vector_law_added row noise :
  length noise = length row -> vector_law cells row (Counts.added row noise)
  = vector_law cells (map (fun _ => 0%Z) row) noise.
Proof.
  revert noise; induction row as [|n row IH]; intros [|e noise] E; simpl in *; auto; try easy.
  rewrite IH by lia. unfold laplace. do 2 f_equal. lia.
Qed.

Theorem released_law_of_noise t noise :
  Forall2 (fun one e => length (fst e) = length (fst one)) t noise ->
  released_law t (Counts.noisy t noise) = released_law (blank t) noise.
Proof.
  induction 1 as [|[row n] [e d] t noise E F IH]; simpl in *; auto.
  rewrite IH. f_equal. unfold class_law, laplace. cbn [fst snd]. rewrite vector_law_added by auto.
  do 2 f_equal. lia.
Qed.

(** *** One record *)

Lemma bumped_row row p d y :
  (Z.abs d = 1)%Z -> cells * vector_law cells row y <= vector_law cells (Counts.bump row p d) y.
Proof.
  intros One. revert p y; induction row as [|n row IH]; intros p y.
  - simpl. destruct y; lra.
  - destruct p, y as [|x y]; simpl; try lra.
    + pose proof (laplace_shift cells n (n + d) x cells_decay) as H.
      replace (Z.to_nat (Z.abs (n - (n + d)))) with 1%nat in H by lia. rewrite pow_1 in H.
      rewrite <- Rmult_assoc. apply Rmult_le_compat_r; auto using vector_law_nonneg.
    + rewrite <- Rmult_assoc, (Rmult_comm cells), Rmult_assoc.
      apply Rmult_le_compat_l; [apply Rlt_le, laplace_positive; auto|]. apply IH.
Qed.

Lemma bumped_rows row ps d y :
  (Z.abs d = 1)%Z ->
  cells ^ length ps * vector_law cells row y
  <= vector_law cells (fold_right (fun p r => Counts.bump r p d) row ps) y.
Proof.
  intros One. induction ps as [|p ps IH]; simpl; [lra|].
  eapply Rle_trans; [|apply bumped_row; auto].
  rewrite Rmult_assoc. apply Rmult_le_compat_l; [lra|auto].
Qed.

Lemma changed_table t c ps d y :
  (Z.abs d = 1)%Z ->
  cells ^ length ps * totals * released_law t y <= released_law (Counts.change t c ps d) y.
Proof.
  intros One. pose proof (power_positive cells cells_decay (length ps)).
  pose proof (power_at_most_one cells cells_decay (length ps)).
  assert (Less : 0 <= cells ^ length ps * totals <= 1) by nra.
  revert c y; induction t as [|[row n] t IH]; intros c y.
  - pose proof (released_law_nonneg [] y). destruct c; cbn [Counts.change]; nra.
  - destruct c, y as [|[x m] y]; cbn [Counts.change released_law]; try lra.
    + rewrite <- Rmult_assoc. apply Rmult_le_compat_r; [apply released_law_nonneg|].
      unfold class_law. cbn [fst snd].
      pose proof (bumped_rows row ps d x One) as A.
      pose proof (laplace_shift totals n (n + d) m totals_decay) as B.
      replace (Z.to_nat (Z.abs (n - (n + d)))) with 1%nat in B by lia. rewrite pow_1 in B.
      replace (cells ^ length ps * totals * (vector_law cells row x * laplace totals n m))
        with ((cells ^ length ps * vector_law cells row x) * (totals * laplace totals n m)) by ring.
      apply Rmult_le_compat; auto.
      * apply Rmult_le_pos; [lra|apply vector_law_nonneg; auto].
      * apply Rmult_le_pos; [lra|]. apply Rlt_le, laplace_positive; auto.
    + rewrite <- Rmult_assoc, (Rmult_comm (cells ^ length ps * totals)), Rmult_assoc.
      apply Rmult_le_compat_l; [apply class_law_nonneg|]. apply IH.
Qed.

End Release.

(** With epsilon / T for each of the T cells that a record is in, and another epsilon for
    the number of records of its class: together they are pure. *)
Theorem released_counts_private epsilon epsilon' tables t e y :
  0 < epsilon -> 0 < epsilon' -> (1 <= tables)%nat ->
  length (Counts.places match e with Counts.Insert r | Counts.Remove r => r end) = tables ->
  let law := released_law (exp (- (epsilon / INR tables))) (exp (- epsilon')) in
  law t y <= exp (epsilon + epsilon') * law (Counts.edited e t) y /\
  law (Counts.edited e t) y <= exp (epsilon + epsilon') * law t y.
Proof.
  intros E E' T P law.
  assert (INR tables >= 1) by (apply Rle_ge, (le_INR 1); auto).
  assert (D : forall x, 0 < x -> 0 < exp (- x) < 1).
  { intros x X. split; [apply exp_pos|]. rewrite <- exp_0. apply exp_increasing. lra. }
  assert (D1 : 0 < exp (- (epsilon / INR tables)) < 1)
    by (apply D, Rmult_lt_0_compat; [auto|apply Rinv_0_lt_compat; lra]).
  assert (F : exp (- (epsilon / INR tables)) ^ tables * exp (- epsilon') = exp (- (epsilon + epsilon'))).
  { rewrite <- Rpower_pow by apply exp_pos. unfold Rpower. rewrite ln_exp, <- exp_plus. f_equal.
    field. lra. }
  assert (K : forall s s', exp (- (epsilon + epsilon')) * law s y <= law s' y ->
                           law s y <= exp (epsilon + epsilon') * law s' y).
  { intros s s' H0. apply Rmult_le_reg_l with (exp (- (epsilon + epsilon'))); [apply exp_pos|].
    rewrite <- Rmult_assoc, <- exp_plus.
    replace (- (epsilon + epsilon') + (epsilon + epsilon')) with 0 by ring. rewrite exp_0. lra. }
  assert (C : forall s r d, (Z.abs d = 1)%Z -> length (Counts.places r) = tables ->
    exp (- (epsilon + epsilon')) * law s y
    <= law (Counts.change s (Counts.class r) (Counts.places r) d) y).
  { intros s r d One L. rewrite <- F.
    pose proof (changed_table _ _ D1 (D epsilon' E') s (Counts.class r) (Counts.places r) d y One) as H0.
    rewrite L in H0. exact H0. }
  split; apply K.
  - destruct e; apply C; auto.
  - destruct e as [r|r]; cbn [Counts.edited].
    + rewrite <- (Counts.removed_again r t) at 2. apply (C _ r (-1)%Z); auto.
    + rewrite <- (Counts.inserted_again r t) at 2. apply (C _ r 1%Z); auto.
Qed.

(** *** Sanity: with less noise they are not as private *)

Example released_counts_tight epsilon epsilon' :
  0 < epsilon -> 0 < epsilon' ->
  let law := released_law (exp (- epsilon)) (exp (- epsilon')) in
  let one := Counts.edited (Counts.Insert {| Counts.class := 0; Counts.places := [0%nat] |}) [([0%Z], 0%Z)] in
  0 < law [([0%Z], 0%Z)] one /\
  law one one = exp (epsilon + epsilon') * law [([0%Z], 0%Z)] one.
Proof.
  intros E E' law one. unfold law, one. simpl. unfold class_law. simpl. unfold laplace, point. simpl.
  assert (D : forall x, 0 < x -> 0 < exp (- x) < 1).
  { intros x X. split; [apply exp_pos|]. rewrite <- exp_0. apply exp_increasing. lra. }
  pose proof (D epsilon E). pose proof (D epsilon' E'). split.
  - repeat apply Rmult_lt_0_compat; try lra; apply Rinv_0_lt_compat; lra.
  - rewrite exp_plus. rewrite !exp_Ropp in *. field. 
    pose proof (exp_pos epsilon). pose proof (exp_pos epsilon'). repeat split; lra.
Qed.
