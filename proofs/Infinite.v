(** Sums over sets that need not be finite, of numbers that are not negative.

    A sum is the least upper bound of the sums over finite lists without repetition,
    so that it depends on no order. Discrete noise on all whole numbers is such a
    distribution, and so are several of them together. *)

From Coq Require Import Reals ZArith List Lra Lia Bool FinFun Classical_Prop.
From Prudent Require Import Finite.
Import ListNotations.
Open Scope R_scope.

(** No finite sum is above b. *)
Definition at_most {A} (f : A -> R) (b : R) : Prop := forall l, NoDup l -> sum l f <= b.

(** The sum of f is s. *)
Definition total {A} (f : A -> R) (s : R) : Prop :=
  at_most f s /\ forall b, at_most f b -> s <= b.

(** A distribution on A, each outcome of which is possible. *)
Definition positive_law {A} (P : A -> R) : Prop := (forall x, 0 < P x) /\ total P 1.

Section Sums.
Context {A : Type}.
Implicit Types (l k : list A) (f g : A -> R).

Lemma sum_incl l k f :
  (forall x, 0 <= f x) -> NoDup l -> incl l k -> sum l f <= sum k f.
Proof.
  intros N D. revert k; induction D as [|x l X D IH]; intros k I.
  - apply sum_nonneg. auto.
  - destruct (in_split x k (I x (or_introl eq_refl))) as (k1 & k2 & ->).
    rewrite sum_app. simpl.
    assert (J : incl l (k1 ++ k2)).
    { intros y Y. specialize (I y (or_intror Y)). apply in_app_iff in I. apply in_app_iff.
      destruct I as [|[->|]]; auto. contradiction. }
    apply IH in J. rewrite sum_app in J. lra.
Qed.

Lemma without_repetition l : exists k, NoDup k /\ incl l k /\ incl k l.
Proof.
  induction l as [|x l (k & D & I & J)].
  - exists []. repeat split; [constructor|easy|easy].
  - destruct (classic (In x k)) as [X|X].
    + exists k. repeat split; auto.
      * intros y [->|Y]; auto.
      * intros y Y. right. auto.
    + exists (x :: k). repeat split.
      * constructor; auto.
      * intros y [->|Y]; [left|right]; auto.
      * intros y [->|Y]; [left|right]; auto.
Qed.

Lemma total_unique f s t : total f s -> total f t -> s = t.
Proof. intros [S LS] [T LT]. pose proof (LS t T). pose proof (LT s S). lra. Qed.

Lemma total_ext f g s : (forall x, f x = g x) -> total f s -> total g s.
Proof.
  intros E [S L]. split.
  - intros l D. rewrite <- (sum_ext l f g) by auto. auto.
  - intros b B. apply L. intros l D. rewrite (sum_ext l f g) by auto. auto.
Qed.

Lemma total_exists f b : at_most f b -> exists s, total f s /\ s <= b.
Proof.
  intros B. destruct (completeness (fun v => exists l, NoDup l /\ v = sum l f)) as [s [U L]].
  - exists b. intros v (l & D & ->). auto.
  - exists 0, []. split; [constructor|reflexivity].
  - exists s. repeat split.
    + intros l D. apply U. eauto.
    + intros c C. apply L. intros v (l & D & ->). auto.
    + apply L. intros v (l & D & ->). auto.
Qed.

Lemma total_positive f s x : 0 < f x -> total f s -> 0 < s.
Proof.
  intros P [S _]. specialize (S [x] ltac:(repeat constructor; auto)). simpl in S. lra.
Qed.

Lemma at_most_le f g b : (forall x, f x <= g x) -> at_most g b -> at_most f b.
Proof. intros L B l D. eapply Rle_trans; [apply sum_le|apply B]; auto. Qed.

Lemma total_scale c f s : 0 <= c -> total f s -> total (fun x => c * f x) (c * s).
Proof.
  intros C [S L]. split.
  - intros l D. rewrite sum_scale. apply Rmult_le_compat_l; auto.
  - intros b B. destruct (Req_dec c 0) as [->|Z].
    + specialize (B [] (NoDup_nil _)). simpl in B. lra.
    + apply Rmult_le_reg_l with (/ c); [apply Rinv_0_lt_compat; lra|].
      replace (/ c * (c * s)) with s by (field; auto). apply L. intros l D.
      apply Rmult_le_reg_l with c; [lra|]. replace (c * (/ c * b)) with b by (field; auto).
      rewrite <- sum_scale. apply B, D.
Qed.

(** A list whose sum is nearly the total, and so are those of all longer ones. *)
Lemma nearly f s d : 0 < d -> total f s -> exists l, NoDup l /\ s - d < sum l f.
Proof.
  intros D [S L]. apply NNPP. intros N. assert (s <= s - d); [|lra]. apply L.
  intros l Dl. apply Rnot_lt_le. intros B. apply N. exists l. auto.
Qed.

Lemma total_plus f g s t :
  (forall x, 0 <= f x) -> (forall x, 0 <= g x) ->
  total f s -> total g t -> total (fun x => f x + g x) (s + t).
Proof.
  intros Nf Ng Sf Sg. split.
  - intros l D. rewrite sum_plus. apply Rplus_le_compat; [apply Sf|apply Sg]; auto.
  - intros b B. apply Rnot_lt_le. intros L. set (d := (s + t - b) / 2).
    destruct (nearly f s d) as (l & Dl & Hl); [unfold d; lra|auto|].
    destruct (nearly g t d) as (k & Dk & Hk); [unfold d; lra|auto|].
    destruct (without_repetition (l ++ k)) as (m & Dm & I & _).
    specialize (B m Dm). rewrite sum_plus in B.
    pose proof (sum_incl l m f Nf Dl ltac:(intros x X; apply I, in_app_iff; auto)).
    pose proof (sum_incl k m g Ng Dk ltac:(intros x X; apply I, in_app_iff; auto)).
    unfold d in *. lra.
Qed.

End Sums.

(** Another numbering of the outcomes. *)
Lemma at_most_renamed {A B} (to : A -> B) (back : B -> A) (f : B -> R) b :
  (forall x, back (to x) = x) -> at_most f b -> at_most (fun x => f (to x)) b.
Proof.
  intros E S l D. rewrite <- sum_map. apply S. apply Injective_map_NoDup; auto.
  intros x y H. rewrite <- (E x), <- (E y), H. reflexivity.
Qed.

Lemma total_renamed {A B} (to : A -> B) (back : B -> A) (f : B -> R) s :
  (forall x, back (to x) = x) -> (forall y, to (back y) = y) ->
  total f s -> total (fun x => f (to x)) s.
Proof.
  intros E F [S L]. split; [apply (at_most_renamed to back); auto|].
  intros b U. apply L. intros l D.
  pose proof (at_most_renamed back to _ b F U l D) as H. simpl in H.
  rewrite (sum_ext l _ f) in H; auto. intros y _. rewrite F. reflexivity.
Qed.

Lemma no_repetition_app {A} (l k : list A) :
  NoDup l -> NoDup k -> (forall x, In x l -> ~ In x k) -> NoDup (l ++ k).
Proof.
  intros D K. induction D as [|x l X D IH]; simpl; intros H; auto. constructor.
  - intros I. apply in_app_iff in I. destruct I as [I|I]; [auto|]. apply (H x); auto.
  - apply IH. intros y Y. apply H. auto.
Qed.

(** Rows, each with its total, and the total of these. *)
Lemma at_most_pairs {A B} (f : A * B -> R) (row : A -> R) b :
  (forall xy, 0 <= f xy) -> (forall x, at_most (fun y => f (x, y)) (row x)) ->
  at_most row b -> at_most f b.
Proof.
  intros N R S l D.
  destruct (without_repetition (map fst l)) as (k1 & D1 & I1 & _).
  destruct (without_repetition (map snd l)) as (k2 & D2 & I2 & _).
  apply Rle_trans with (sum (list_prod k1 k2) f).
  - apply sum_incl; auto. intros [x y] I. apply in_prod_iff. split.
    + apply I1. apply (in_map fst) in I. exact I.
    + apply I2. apply (in_map snd) in I. exact I.
  - rewrite sum_product. eapply Rle_trans; [|apply (S k1 D1)].
    apply sum_le. intros x _. apply R. auto.
Qed.

Lemma total_pairs {A B} (f : A * B -> R) (row : A -> R) s :
  (forall xy, 0 <= f xy) -> (forall x, total (fun y => f (x, y)) (row x)) ->
  total row s -> total f s.
Proof.
  intros N R [S L]. split; [apply at_most_pairs with row; auto; intros x; apply R|].
  intros b U. apply L. intros l D. apply Rnot_lt_le. intros H.
  set (d := (sum l row - b) / (1 + INR (length l))).
  assert (P : 0 < 1 + INR (length l)) by (pose proof (pos_INR (length l)); lra).
  assert (d0 : 0 < d) by (apply Rmult_lt_0_compat; [lra|apply Rinv_0_lt_compat; lra]).
  assert (K : exists k, NoDup k /\ sum l row - d * INR (length l) <= sum (list_prod l k) f).
  { clear D H P S. clearbody d. induction l as [|x l (k & Dk & IH)].
    - exists []. split; [constructor|]. simpl. lra.
    - destruct (nearly _ _ d d0 (R x)) as (k' & Dk' & Hk').
      destruct (without_repetition (k ++ k')) as (m & Dm & I & _).
      exists m. split; auto. rewrite sum_product in *. cbn [sum fold_right length].
      rewrite S_INR.
      fold (sum l row).
      assert (sum l (fun x0 => sum k (fun y => f (x0, y))) <= sum l (fun x0 => sum m (fun y => f (x0, y)))).
      { apply sum_le. intros z _. apply sum_incl; auto. intros y Y. apply I, in_app_iff; auto. }
      assert (sum k' (fun y => f (x, y)) <= sum m (fun y => f (x, y))).
      { apply sum_incl; auto. intros y Y. apply I, in_app_iff; auto. }
      unfold sum in *. cbn [fold_right]. lra. }
  destruct K as (k & Dk & K).
  assert (Dp : NoDup (list_prod l k)).
  { clear - D Dk. induction D as [|x l X D IH]; [constructor|]. simpl.
    apply no_repetition_app; auto.
    - apply Injective_map_NoDup; auto. intros y z E. congruence.
    - intros [a c] I J. apply in_map_iff in I. destruct I as (y & E & _).
      apply in_prod_iff in J. injection E as -> ->. tauto. }
  pose proof (U _ Dp) as C.
  assert (d * (1 + INR (length l)) = sum l row - b) by (unfold d; field; lra).
  lra.
Qed.

(** Independent answers. *)
Lemma total_product {A B} (f : A -> R) (g : B -> R) s t :
  (forall x, 0 <= f x) -> (forall y, 0 <= g y) ->
  total f s -> total g t -> total (fun xy => f (fst xy) * g (snd xy)) (s * t).
Proof.
  intros Nf Ng Sf Sg. apply total_pairs with (row := fun x => t * f x).
  - intros xy. apply Rmult_le_pos; auto.
  - intros x. simpl. rewrite Rmult_comm. apply total_scale; auto.
  - rewrite Rmult_comm. apply total_scale; auto.
    destruct Sg as [S _]. specialize (S [] (NoDup_nil _)). exact S.
Qed.

(** A law of answers of which each depends on the one before is a law. *)
Theorem joint_positive_law {A B} (P : A -> R) (P2 : A -> B -> R) :
  positive_law P -> (forall x, positive_law (P2 x)) -> positive_law (joint P P2).
Proof.
  intros [N S] K. split.
  - intros [x y]. apply Rmult_lt_0_compat; [apply N|apply K].
  - apply total_pairs with (row := P); auto.
    + intros [x y]. apply Rlt_le, Rmult_lt_0_compat; [apply N|apply K].
    + intros x. rewrite <- (Rmult_1_r (P x)).
      apply (total_scale (P x) (P2 x)); [apply Rlt_le, N|apply K].
Qed.

(** What bounds the positive parts of P - a Q bounds the excess of every event. *)
Theorem at_most_bounds_events {A} (P Q : A -> R) a delta (E : A -> bool) p q :
  0 <= a -> at_most (fun x => positive_part (P x - a * Q x)) delta ->
  total (fun x => if E x then P x else 0) p -> total (fun x => if E x then Q x else 0) q ->
  p <= a * q + delta.
Proof.
  intros Ha B [_ L] [S _]. apply L. intros l D.
  pose proof (hockey_bounds_events l P Q a E) as H. specialize (B l D).
  pose proof (Rmult_le_compat_l a _ _ Ha (S l D)). unfold hockey in H. lra.
Qed.

(** ** Lists of answers *)

Lemma total_nil {A} : total (fun y : list A => match y with [] => 1 | _ => 0 end) 1.
Proof.
  split.
  - intros l D. apply Rle_trans with (sum [[]] (fun y : list A => match y with [] => 1 | _ => 0 end)).
    + assert (E : forall k, NoDup k -> ~ In [] k ->
        sum k (fun y : list A => match y with [] => 1 | _ => 0 end) = 0).
      { clear. induction k as [|y k IH]; intros D N; auto. inversion D; subst. simpl.
        rewrite IH; auto; [|intros I; apply N; right; auto].
        destruct y; [exfalso; apply N; left; auto|lra]. }
      induction D as [|y k X D IH]; [simpl; lra|]. destruct y as [|z y].
      * simpl. rewrite E; auto. lra.
      * simpl in *. lra.
    + simpl. lra.
  - intros b B. specialize (B [[]] ltac:(repeat constructor; auto)). simpl in B. lra.
Qed.

Lemma total_some {A} (f : option A -> R) s :
  f None = 0 -> (forall x, 0 <= f x) -> total (fun x => f (Some x)) s -> total f s.
Proof.
  intros Z N [S L]. split.
  - intros l D.
    assert (K : exists k, NoDup k /\ (forall x, In x k -> In (Some x) l) /\
                sum l f = sum k (fun x => f (Some x))).
    { clear S L. induction D as [|y l X D (k & Dk & I & E)].
      - exists []. repeat split; [constructor|easy].
      - destruct y as [x|].
        + exists (x :: k). repeat split.
          * constructor; auto.
          * intros z [->|J]; [left|right]; auto.
          * simpl. rewrite E. reflexivity.
        + exists k. repeat split; auto.
          * intros z J. right. auto.
          * simpl. rewrite Z, E. unfold sum. ring. }
    destruct K as (k & Dk & _ & ->). auto.
  - intros b B. apply L. intros l D. rewrite <- (sum_map Some). apply B.
    apply Injective_map_NoDup; auto. intros x y E. congruence.
Qed.

Lemma total_cons {A} (f : A -> R) (g : list A -> R) s t :
  (forall x, 0 <= f x) -> (forall y, 0 <= g y) -> total f s -> total g t ->
  total (fun y => match y with [] => 0 | x :: y' => f x * g y' end) (s * t).
Proof.
  intros Nf Ng F G.
  pose (h := fun o : option (A * list A) =>
    match o with None => 0 | Some xy => f (fst xy) * g (snd xy) end).
  assert (H : total h (s * t)).
  { apply total_some; auto.
    - intros [xy|]; simpl; [apply Rmult_le_pos; auto|lra].
    - apply total_product; auto. }
  apply (total_renamed
    (fun y => match y with [] => None | x :: y' => Some (x, y') end)
    (fun o => match o with None => [] | Some xy => fst xy :: snd xy end)) in H.
  - apply total_ext with (2 := H). intros [|x y]; reflexivity.
  - intros [|x y]; reflexivity.
  - intros [[x y]|]; reflexivity.
Qed.
