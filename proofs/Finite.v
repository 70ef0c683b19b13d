(** Finite distributions, the hockey-stick divergence, and what dominates what.

    A distribution gives each outcome of a finite list a real mass. A pair of
    distributions is what a mechanism releases on two neighbouring data sets. Its
    profile at a = e^epsilon is the sum of the positive parts of P - a Q, the
    least delta for which the pair is (epsilon, delta)-indistinguishable. *)

From Coq Require Import Reals List Lra Lia Bool.
Import ListNotations.
Open Scope R_scope.

Definition sum {A} (l : list A) (f : A -> R) : R := fold_right (fun x s => f x + s) 0 l.

Definition positive_part (x : R) : R := Rmax 0 x.

Definition hockey {A} (l : list A) (P Q : A -> R) (a : R) : R :=
  sum l (fun x => positive_part (P x - a * Q x)).

Definition nonnegative {A} (l : list A) (P : A -> R) : Prop := forall x, In x l -> 0 <= P x.

Definition distribution {A} (l : list A) (P : A -> R) : Prop := nonnegative l P /\ sum l P = 1.

(** The second pair dominates the first one: its profile is nowhere below. *)
Definition dominated {A B} (l : list A) (P Q : A -> R) (k : list B) (p q : B -> R) : Prop :=
  forall a, 0 <= a -> hockey l P Q a <= hockey k p q a.

(** ** Sums *)

Section Sums.
Context {A : Type}.

Lemma sum_ext (l : list A) f g : (forall x, In x l -> f x = g x) -> sum l f = sum l g.
Proof.
  induction l; simpl; intros H; auto. rewrite H by auto. rewrite IHl; auto.
Qed.

Lemma sum_le (l : list A) f g : (forall x, In x l -> f x <= g x) -> sum l f <= sum l g.
Proof.
  induction l; simpl; intros H; [lra|]. apply Rplus_le_compat; auto.
Qed.

Lemma sum_nonneg (l : list A) f : (forall x, In x l -> 0 <= f x) -> 0 <= sum l f.
Proof.
  induction l as [|x l IH]; simpl; intros H; [lra|].
  pose proof (H x (or_introl eq_refl)). assert (0 <= sum l f) by (apply IH; auto). lra.
Qed.

Lemma sum_zero (l : list A) : sum l (fun _ => 0) = 0.
Proof. induction l; simpl; lra. Qed.

Lemma sum_plus (l : list A) f g : sum l (fun x => f x + g x) = sum l f + sum l g.
Proof. induction l; simpl; lra. Qed.

Lemma sum_scale (l : list A) c f : sum l (fun x => c * f x) = c * sum l f.
Proof. induction l; simpl; lra. Qed.

Lemma sum_scale_right (l : list A) c f : sum l (fun x => f x * c) = sum l f * c.
Proof. induction l; simpl; lra. Qed.

Lemma sum_app (l k : list A) f : sum (l ++ k) f = sum l f + sum k f.
Proof. induction l; simpl; lra. Qed.

End Sums.

Lemma sum_map {A B} (g : B -> A) (l : list B) f : sum (map g l) f = sum l (fun x => f (g x)).
Proof. induction l; simpl; auto. rewrite IHl. auto. Qed.

Lemma sum_swap {A B} (l : list A) (k : list B) f :
  sum l (fun x => sum k (fun y => f x y)) = sum k (fun y => sum l (fun x => f x y)).
Proof.
  induction l; simpl; [symmetry; apply sum_zero|]. rewrite IHl. symmetry. apply sum_plus.
Qed.

Lemma sum_product {A B} (l : list A) (k : list B) f :
  sum (list_prod l k) f = sum l (fun x => sum k (fun y => f (x, y))).
Proof.
  induction l; simpl; auto. rewrite sum_app, sum_map. simpl. rewrite IHl. auto.
Qed.

(** ** Positive parts *)

Lemma positive_part_nonneg x : 0 <= positive_part x.
Proof. apply Rmax_l. Qed.

Lemma positive_part_ge x : x <= positive_part x.
Proof. apply Rmax_r. Qed.

Lemma positive_part_mono x y : x <= y -> positive_part x <= positive_part y.
Proof. unfold positive_part, Rmax. destruct (Rle_dec 0 x), (Rle_dec 0 y); lra. Qed.

Lemma positive_part_plus x y : positive_part (x + y) <= positive_part x + positive_part y.
Proof.
  unfold positive_part, Rmax. destruct (Rle_dec 0 x), (Rle_dec 0 y), (Rle_dec 0 (x + y)); lra.
Qed.

Lemma positive_part_scale c x : 0 <= c -> positive_part (c * x) = c * positive_part x.
Proof.
  intros C. unfold positive_part, Rmax. destruct (Rle_dec 0 x), (Rle_dec 0 (c * x)); try lra.
  - destruct (Req_dec c 0) as [->|]; [lra|]. exfalso. apply n. apply Rmult_le_pos; lra.
  - assert (c * x <= 0) by (apply Rmult_le_0_l || nra). nra.
Qed.

Lemma positive_part_of_nonneg x : 0 <= x -> positive_part x = x.
Proof. intros. apply Rmax_right. auto. Qed.

Lemma positive_part_of_nonpos x : x <= 0 -> positive_part x = 0.
Proof. intros. apply Rmax_left. auto. Qed.

Lemma sum_positive_part {A} (l : list A) f :
  positive_part (sum l f) <= sum l (fun x => positive_part (f x)).
Proof.
  induction l; simpl; [rewrite positive_part_of_nonneg; lra|].
  eapply Rle_trans; [apply positive_part_plus|]. lra.
Qed.

(** ** The profile *)

Lemma hockey_nonneg {A} (l : list A) P Q a : 0 <= hockey l P Q a.
Proof. apply sum_nonneg. intros. apply positive_part_nonneg. Qed.

Lemma hockey_at_zero {A} (l : list A) P Q : distribution l P -> hockey l P Q 0 = 1.
Proof.
  intros [N S]. rewrite <- S. apply sum_ext. intros x I. rewrite Rmult_0_l, Rminus_0_r.
  apply positive_part_of_nonneg, N, I.
Qed.

(** delta is at least the excess of any event: the profile is what its name says. *)
Theorem hockey_bounds_events {A} (l : list A) P Q a (E : A -> bool) :
  sum l (fun x => if E x then P x else 0) - a * sum l (fun x => if E x then Q x else 0)
  <= hockey l P Q a.
Proof.
  unfold hockey. induction l as [|x l IH]; simpl; [lra|].
  pose proof (positive_part_nonneg (P x - a * Q x)).
  pose proof (positive_part_ge (P x - a * Q x)). destruct (E x); lra.
Qed.

(** And some event attains it. *)
Theorem hockey_is_attained {A} (l : list A) P Q a : exists E : A -> bool,
  sum l (fun x => if E x then P x else 0) - a * sum l (fun x => if E x then Q x else 0)
  = hockey l P Q a.
Proof.
  exists (fun x => if Rle_dec 0 (P x - a * Q x) then true else false).
  unfold hockey. induction l as [|x l IH]; simpl; [lra|].
  unfold positive_part at 1, Rmax at 1. destruct (Rle_dec 0 (P x - a * Q x)); lra.
Qed.

(** A profile is at least that of indistinguishable distributions. *)
Lemma hockey_least {A} (l : list A) P Q a :
  distribution l P -> distribution l Q -> 1 - a <= hockey l P Q a.
Proof.
  intros [_ SP] [_ SQ]. pose proof (hockey_bounds_events l P Q a (fun _ => true)).
  change (sum l P - a * sum l Q <= hockey l P Q a) in H.
  rewrite SP, SQ in H. lra.
Qed.

(** To dominate at every epsilon is to dominate, for distributions. *)
Lemma dominated_by_epsilon {A B} (l : list A) P Q (k : list B) p q :
  distribution l P -> distribution k p ->
  (forall epsilon, hockey l P Q (exp epsilon) <= hockey k p q (exp epsilon)) ->
  dominated l P Q k p q.
Proof.
  intros DP Dp H a Ha. destruct (Req_dec a 0) as [->|].
  - rewrite !hockey_at_zero; auto. lra.
  - rewrite <- (exp_ln a) by lra. apply H.
Qed.

Lemma dominated_refl {A} (l : list A) P Q : dominated l P Q l P Q.
Proof. intros a Ha. lra. Qed.

Lemma dominated_trans {A B C} (l : list A) P Q (k : list B) p q (m : list C) u v :
  dominated l P Q k p q -> dominated k p q m u v -> dominated l P Q m u v.
Proof. intros H K a Ha. specialize (H a Ha). specialize (K a Ha). lra. Qed.

(** Both masses may be scaled, by different factors. *)
Lemma dominated_scaled {A B} (l : list A) P Q (k : list B) p q s a :
  dominated l P Q k p q -> nonnegative l Q -> 0 <= s -> 0 <= a ->
  sum l (fun x => positive_part (s * P x - a * Q x))
  <= sum k (fun y => positive_part (s * p y - a * q y)).
Proof.
  intros D N Hs Ha. destruct (Req_dec s 0) as [->|Z].
  - rewrite (sum_ext l _ (fun _ => 0)).
    + rewrite sum_zero. apply sum_nonneg. intros. apply positive_part_nonneg.
    + intros x I. apply positive_part_of_nonpos. pose proof (N x I).
      assert (0 <= a * Q x) by (apply Rmult_le_pos; auto). lra.
  - assert (Hd : 0 <= a / s) by (apply Rmult_le_pos; [lra|left; apply Rinv_0_lt_compat; lra]).
    specialize (D (a / s) Hd).
    assert (E : forall C (m : list C) u v,
      sum m (fun x => positive_part (s * u x - a * v x)) = s * hockey m u v (a / s)).
    { intros. unfold hockey. rewrite <- sum_scale. apply sum_ext. intros x _.
      rewrite <- positive_part_scale by lra. f_equal. field. auto. }
    rewrite !E. apply Rmult_le_compat_l; lra.
Qed.

(** ** Post-processing *)

Definition pushed {A B} (l : list A) (kernel : A -> B -> R) (P : A -> R) (y : B) : R :=
  sum l (fun x => P x * kernel x y).

Theorem post_processing {A B} (l : list A) (k : list B) kernel P Q :
  (forall x, In x l -> distribution k (kernel x)) ->
  dominated k (pushed l kernel P) (pushed l kernel Q) l P Q.
Proof.
  intros K a Ha. unfold hockey, pushed.
  apply Rle_trans with (sum k (fun y => sum l (fun x => positive_part (P x - a * Q x) * kernel x y))).
  - apply sum_le. intros y Y. rewrite <- sum_scale.
    replace (sum l (fun x => P x * kernel x y) - sum l (fun x => a * (Q x * kernel x y)))
      with (sum l (fun x => (P x - a * Q x) * kernel x y)).
    + eapply Rle_trans; [apply sum_positive_part|]. apply sum_le. intros x X.
      destruct (K x X) as [N _]. rewrite Rmult_comm, positive_part_scale by (apply N; auto). lra.
    + clear. induction l; simpl; lra.
  - rewrite <- sum_swap. apply sum_le. intros x X. rewrite sum_scale.
    destruct (K x X) as [_ ->]. lra.
Qed.

Lemma pushed_distribution {A B} (l : list A) (k : list B) kernel P :
  distribution l P -> (forall x, In x l -> distribution k (kernel x)) ->
  distribution k (pushed l kernel P).
Proof.
  intros [N S] K. split.
  - intros y Y. apply sum_nonneg. intros x X. destruct (K x X) as [M _].
    apply Rmult_le_pos; auto.
  - unfold pushed. rewrite <- sum_swap. rewrite <- S. apply sum_ext. intros x X.
    rewrite sum_scale. destruct (K x X) as [_ ->]. lra.
Qed.

(** ** Composition of two, the second of which may depend on the first answer *)

Definition joint {A B} (P : A -> R) (P2 : A -> B -> R) (xy : A * B) : R :=
  P (fst xy) * P2 (fst xy) (snd xy).

Definition product {A B} (p : A -> R) (p2 : B -> R) : A * B -> R := joint p (fun _ => p2).

Lemma joint_distribution {A B} (l : list A) (k : list B) P P2 :
  distribution l P -> (forall x, In x l -> distribution k (P2 x)) ->
  distribution (list_prod l k) (joint P P2).
Proof.
  intros [N S] K. split.
  - intros [x y] I. apply in_prod_iff in I. destruct I as [X Y]. destruct (K x X) as [M _].
    apply Rmult_le_pos; simpl; auto.
  - rewrite sum_product. rewrite <- S. apply sum_ext. intros x X. unfold joint. simpl.
    rewrite sum_scale. destruct (K x X) as [_ ->]. lra.
Qed.

Theorem composition {A1 A2 B1 B2}
  (l1 : list A1) (P1 Q1 : A1 -> R) (k1 : list B1) (p1 q1 : B1 -> R)
  (l2 : list A2) (P2 Q2 : A1 -> A2 -> R) (k2 : list B2) (p2 q2 : B2 -> R) :
  nonnegative l1 P1 -> nonnegative l1 Q1 ->
  (forall x, In x l1 -> nonnegative l2 (Q2 x)) ->
  nonnegative k2 p2 -> nonnegative k2 q2 ->
  dominated l1 P1 Q1 k1 p1 q1 ->
  (forall x, In x l1 -> dominated l2 (P2 x) (Q2 x) k2 p2 q2) ->
  dominated (list_prod l1 l2) (joint P1 P2) (joint Q1 Q2)
            (list_prod k1 k2) (product p1 p2) (product q1 q2).
Proof.
  intros NP1 NQ1 NQ2 Np2 Nq2 D1 D2 a Ha. unfold hockey. rewrite !sum_product.
  unfold product, joint. simpl.
  apply Rle_trans with (sum l1 (fun x => sum k2 (fun y =>
    positive_part (P1 x * p2 y - a * Q1 x * q2 y)))).
  - apply sum_le. intros x X.
    pose proof (dominated_scaled _ _ _ _ _ _ (P1 x) (a * Q1 x) (D2 x X) (NQ2 x X) (NP1 x X)
                  ltac:(apply Rmult_le_pos; auto)) as H.
    eapply Rle_trans; [right|exact H]. apply sum_ext. intros y _. f_equal. ring.
  - rewrite sum_swap. rewrite (sum_swap k1 k2). apply sum_le. intros y Y.
    pose proof (dominated_scaled _ _ _ _ _ _ (p2 y) (a * q2 y) D1 NQ1 (Np2 y Y)
                  ltac:(apply Rmult_le_pos; auto)) as H.
    eapply Rle_trans; [right|eapply Rle_trans; [exact H|right]];
      apply sum_ext; intros x _; f_equal; ring.
Qed.

(** *** Any number of steps *)

Fixpoint tuple (A : Type) (n : nat) : Type :=
  match n with O => unit | S m => (A * tuple A m)%type end.

Fixpoint tuples {A} (l : list A) (n : nat) : list (tuple A n) :=
  match n with O => [tt] | S m => list_prod l (tuples l m) end.

(** The law of the next n answers, each of which depends on all before it. *)
Fixpoint steps {A} (step : list A -> A -> R) (history : list A) (n : nat) : tuple A n -> R :=
  match n with
  | O => fun _ => 1
  | S m => joint (step history) (fun x => steps step (x :: history) m)
  end.

(** n independent draws of one distribution. *)
Definition draws {B} (p : B -> R) (n : nat) : tuple B n -> R := steps (fun _ => p) [] n.

Lemma steps_constant {B} (p : B -> R) history history' n t :
  steps (fun _ => p) history n t = steps (fun _ => p) history' n t.
Proof.
  revert history history' t; induction n as [|n IH]; intros h h' t; [reflexivity|].
  destruct t as [x t]. simpl. unfold joint. simpl. rewrite (IH (x :: h) (x :: h')). reflexivity.
Qed.

Lemma steps_distribution {A} (l : list A) step history n :
  (forall h, distribution l (step h)) -> distribution (tuples l n) (steps step history n).
Proof.
  intros D. revert history; induction n as [|n IH]; intros history.
  - split; [intros x _; simpl; lra|]. unfold sum. simpl. lra.
  - apply joint_distribution; auto.
Qed.

(** If one pair dominates every step, whatever came before, n draws of the pair
    dominate n steps. *)
Theorem composition_of_many {A B} (l : list A) (P Q : list A -> A -> R) (k : list B) p q n :
  (forall h, distribution l (P h)) -> (forall h, distribution l (Q h)) ->
  distribution k p -> distribution k q ->
  (forall h, dominated l (P h) (Q h) k p q) ->
  dominated (tuples l n) (steps P [] n) (steps Q [] n) (tuples k n) (draws p n) (draws q n).
Proof.
  intros DP DQ Dp Dq D. generalize (@nil A) as history. induction n as [|n IH]; intros history.
  - intros a _. right. reflexivity.
  - intros a Ha.
    assert (E : hockey (tuples k (S n)) (draws p (S n)) (draws q (S n)) a
      = hockey (list_prod k (tuples k n)) (product p (draws p n)) (product q (draws q n)) a).
    { apply sum_ext. intros [x t] _. unfold draws, product, joint. simpl. unfold joint. simpl.
      rewrite !(steps_constant _ [x] []). reflexivity. }
    rewrite E.
    apply (composition l (P history) (Q history) k p q (tuples l n)
             (fun x => steps P (x :: history) n) (fun x => steps Q (x :: history) n));
      try apply DP; try apply DQ; auto.
    + intros x _. apply steps_distribution. auto.
    + apply (steps_distribution k (fun _ => p)). auto.
    + apply (steps_distribution k (fun _ => q)). auto.
Qed.

(** ** Mixtures *)

Lemma hockey_of_mixture {A I} (l : list A) (is : list I) (w : I -> R) (P Q : I -> A -> R) a :
  (forall i, In i is -> 0 <= w i) ->
  hockey l (fun x => sum is (fun i => w i * P i x)) (fun x => sum is (fun i => w i * Q i x)) a
  <= sum is (fun i => w i * hockey l (P i) (Q i) a).
Proof.
  intros N. unfold hockey.
  apply Rle_trans with (sum l (fun x => sum is (fun i => w i * positive_part (P i x - a * Q i x)))).
  - apply sum_le. intros x _. rewrite <- sum_scale.
    replace (sum is (fun i => w i * P i x) - sum is (fun i => a * (w i * Q i x)))
      with (sum is (fun i => w i * (P i x - a * Q i x))) by (clear; induction is; simpl; lra).
    eapply Rle_trans; [apply sum_positive_part|]. apply sum_le. intros i I1.
    rewrite positive_part_scale by auto. lra.
  - right. rewrite sum_swap. apply sum_ext. intros i _. apply sum_scale.
Qed.

(** ** Group privacy by chains *)

(** A change of two records is two changes of one. *)
Theorem chain {A} (l : list A) P M Q a b :
  0 <= a -> hockey l P Q (a * b) <= hockey l P M a + a * hockey l M Q b.
Proof.
  intros Ha. unfold hockey. rewrite <- sum_scale, <- sum_plus. apply sum_le. intros x _.
  rewrite <- positive_part_scale by auto.
  eapply Rle_trans; [|apply positive_part_plus]. right. f_equal. ring.
Qed.

Fixpoint geometric (a : R) (k : nat) : R :=
  match k with O => 0 | S k' => 1 + a * geometric a k' end.

(** k records cost k epsilon, and delta (1 + a + ... + a^(k-1)). *)
Theorem group_privacy {A} (l : list A) (M : nat -> A -> R) a delta k :
  0 <= a -> (forall i, (i < k)%nat -> hockey l (M i) (M (S i)) a <= delta) -> (0 < k)%nat ->
  hockey l (M 0%nat) (M k) (a ^ k) <= delta * geometric a k.
Proof.
  intros Ha H K. revert M H K. induction k as [|k IH]; intros M H K; [lia|].
  destruct k as [|k].
  - simpl. rewrite Rmult_1_r. specialize (H 0%nat ltac:(lia)). lra.
  - change (a ^ S (S k)) with (a * a ^ S k).
    eapply Rle_trans; [apply (chain l _ (M 1%nat)); auto|].
    specialize (IH (fun i => M (S i))). simpl in IH.
    assert (G := IH ltac:(intros; apply H; lia) ltac:(lia)).
    pose proof (H 0%nat ltac:(lia)) as H0. simpl geometric in *.
    assert (a * hockey l (M 1%nat) (M (S (S k))) (a ^ S k) <= a * (delta * (1 + a * geometric a k)))
      by (apply Rmult_le_compat_l; auto).
    lra.
Qed.
