(** The trimmed sum and its margin.

    The F longest records are left out and the others summed. The margin is the
    number of records of norm above tau that may still come before one of them
    is kept: max(0, F - #{norms > tau}).

    Records have a norm and one total order that refines it, so that which of
    several equally long records is left out depends on no order of rows. *)

From Coq Require Import ZArith QArith Qabs List Lia Lqa Permutation Bool Arith.
Import ListNotations.

Section TrimmedSum.

Variable A : Type.
Variable norm : A -> Q.
Variable before : A -> A -> bool.

Hypothesis total : forall x y, before x y = true \/ before y x = true.
Hypothesis transitive : forall x y z,
  before x y = true -> before y z = true -> before x z = true.
Hypothesis antisymmetric : forall x y, before x y = true -> before y x = true -> x = y.
Hypothesis refines : forall x y, before x y = true -> norm x <= norm y.

(** ** Definitions, which are also extracted *)

Fixpoint insert (x : A) (l : list A) : list A :=
  match l with
  | [] => [x]
  | y :: l' => if before x y then x :: y :: l' else y :: insert x l'
  end.

Definition sorted (l : list A) : list A := fold_right insert [] l.

(** The records that are summed: all but the [trim] last ones. *)
Definition kept (trim : nat) (l : list A) : list A := firstn (length l - trim) (sorted l).

Definition above (tau : Q) (x : A) : bool := negb (Qle_bool (norm x) tau).

Definition long (tau : Q) (l : list A) : nat := length (filter (above tau) l).

Definition margin (trim : nat) (tau : Q) (l : list A) : nat := trim - long tau l.

(** ** The margin changes by at most one *)

(** Adding a record lowers the margin by one, or leaves it as it is. *)
Theorem margin_of_one_more trim tau x l :
  (margin trim tau (x :: l) <= margin trim tau l <= S (margin trim tau (x :: l)))%nat.
Proof. unfold margin, long; simpl. destruct (above tau x); simpl; lia. Qed.

Lemma long_permutation tau l l' : Permutation l l' -> long tau l = long tau l'.
Proof.
  unfold long. induction 1; simpl; auto; try (destruct (above tau x); simpl; lia); try lia.
  destruct (above tau x), (above tau y); simpl; auto.
Qed.

(** ** Sorting *)

Fixpoint ascending (l : list A) : Prop :=
  match l with
  | [] => True
  | x :: l' => Forall (fun y => before x y = true) l' /\ ascending l'
  end.

Lemma insert_permutation x l : Permutation (x :: l) (insert x l).
Proof.
  induction l as [|y l IH]; simpl; auto. destruct (before x y); auto.
  rewrite perm_swap. auto.
Qed.

Lemma sorted_permutation l : Permutation l (sorted l).
Proof. induction l; simpl; auto. rewrite <- insert_permutation. auto. Qed.

Lemma sorted_length l : length (sorted l) = length l.
Proof. symmetry. apply Permutation_length, sorted_permutation. Qed.

Lemma insert_ascending x l : ascending l -> ascending (insert x l).
Proof.
  induction l as [|y l IH]; simpl; auto. intros [F S].
  destruct (before x y) eqn:E; simpl; auto.
  - split; auto. constructor; auto. eapply Forall_impl; [|exact F]. intros z Z. simpl in Z. eauto.
  - split; [|auto]. apply Permutation_Forall with (x :: l); [apply insert_permutation|].
    constructor; auto. destruct (total x y); congruence.
Qed.

Lemma sorted_ascending l : ascending (sorted l).
Proof. induction l; simpl; auto using insert_ascending. Qed.

Lemma ascending_unique l l' : ascending l -> ascending l' -> Permutation l l' -> l = l'.
Proof.
  revert l'; induction l as [|x l IH]; intros l' S S' P.
  { apply Permutation_nil in P. auto. }
  destruct l' as [|y l']; [symmetry in P; apply Permutation_nil in P; easy|].
  destruct S as [F S], S' as [F' S'].
  assert (x = y).
  { assert (I : In x (y :: l')) by (eapply Permutation_in; [exact P|simpl; auto]).
    assert (J : In y (x :: l)) by (eapply Permutation_in; [symmetry; exact P|simpl; auto]).
    destruct I as [->|I]; auto. destruct J as [->|J]; auto.
    rewrite Forall_forall in F, F'. auto. }
  subst y. f_equal. apply IH; auto. eapply Permutation_cons_inv; eauto.
Qed.

(** The order of rows does not matter. *)
Lemma kept_permutation trim l l' : Permutation l l' -> kept trim l = kept trim l'.
Proof.
  intros P. unfold kept. rewrite (Permutation_length P). f_equal.
  apply ascending_unique; auto using sorted_ascending.
  rewrite <- !sorted_permutation. auto.
Qed.

(** ** One more record changes the kept ones by one, no longer than tau *)

Lemma ascending_nth l x i : ascending (x :: l) -> (i < length l)%nat -> before x (nth i l x) = true.
Proof. intros [F _] L. rewrite Forall_forall in F. apply F, nth_In, L. Qed.

Lemma firstn_insert x l k :
  ascending l -> (k < length l)%nat ->
  exists y, before y (nth k l x) = true /\
            Permutation (firstn (S k) (insert x l)) (y :: firstn k l).
Proof.
  revert k; induction l as [|z l IH]; intros k S L; [simpl in L; lia|].
  simpl insert. destruct (before x z) eqn:E.
  - exists x. split; [|reflexivity].
    destruct k; simpl; auto. apply transitive with z; auto.
    destruct S as [F _]. rewrite Forall_forall in F. apply F, nth_In. simpl in L. lia.
  - assert (zx : before z x = true) by (destruct (total x z); congruence).
    destruct k as [|k].
    + exists z. split; [simpl|reflexivity]. destruct (total z z); auto.
    + destruct S as [F S]. simpl in L. destruct (IH k S ltac:(lia)) as (y & B & P).
      exists y. split; [exact B|]. change (firstn (Datatypes.S (Datatypes.S k)) (z :: insert x l))
        with (z :: firstn (Datatypes.S k) (insert x l)).
      change (firstn (Datatypes.S k) (z :: l)) with (z :: firstn k l).
      rewrite P. apply perm_swap.
Qed.

Lemma above_spec tau x : above tau x = false <-> norm x <= tau.
Proof.
  unfold above. rewrite negb_false_iff. apply Qle_bool_iff.
Qed.

(** If fewer than [trim] records are long, the first of the [trim] last ones is not. *)
Lemma not_long tau trim l d :
  ascending l -> (trim <= length l)%nat -> (long tau l < trim)%nat ->
  norm (nth (length l - trim) l d) <= tau.
Proof.
  intros S L H. apply above_spec.
  destruct (above tau (nth (length l - trim) l d)) eqn:E; auto. exfalso.
  assert (G : forall k, (k < length l)%nat -> ascending l -> above tau (nth k l d) = true ->
              (length l - k <= long tau l)%nat).
  { clear - refines. induction l as [|x l IH]; simpl; intros k K S E; [lia|].
    destruct S as [F S].
    assert (M : forall y, In y l -> above tau x = true -> above tau y = true).
    { intros y I X. rewrite Forall_forall in F. specialize (F _ I). apply refines in F.
      unfold above in *. rewrite negb_true_iff in *. destruct (Qle_bool (norm y) tau) eqn:Y; auto.
      apply Qle_bool_iff in Y. assert (Qle_bool (norm x) tau = true)
        by (apply Qle_bool_iff; eapply Qle_trans; eauto). congruence. }
    unfold long in *. simpl. destruct k as [|k].
    - rewrite E. simpl. assert (filter (above tau) l = l) as ->; [|lia].
      clear - M E. induction l as [|y l IH]; simpl; auto. rewrite M; simpl; auto.
      f_equal. apply IH. intros; apply M; simpl; auto.
    - specialize (IH k ltac:(lia) S E). destruct (above tau x); simpl; lia. }
  assert (length l - trim < length l)%nat by lia.
  specialize (G _ H0 S E). lia.
Qed.

(** While the margin is positive, a record that is added changes the kept
    records by at most one, of norm at most tau. *)
Theorem kept_of_one_more trim tau x l :
  (0 < margin trim tau l)%nat ->
  kept trim (x :: l) = [] /\ kept trim l = [] \/
  exists y, Permutation (kept trim (x :: l)) (y :: kept trim l) /\ norm y <= tau.
Proof.
  unfold margin, kept. intros M. cbn [length sorted fold_right]. fold (sorted l).
  destruct (le_lt_dec (S (length l)) trim) as [few|many].
  { left. replace (S (length l) - trim)%nat with 0%nat by lia.
    replace (length l - trim)%nat with 0%nat by lia. auto. }
  right. replace (S (length l) - trim)%nat with (S (length l - trim)) by lia.
  pose proof (sorted_ascending l) as As.
  destruct (firstn_insert x (sorted l) (length l - trim) As) as (y & B & P).
  { rewrite sorted_length. lia. }
  exists y. split; auto.
  eapply Qle_trans; [apply refines, B|].
  rewrite <- (sorted_length l). apply not_long; rewrite ?sorted_length; auto; try lia.
  rewrite (long_permutation tau (sorted l) l); [lia|].
  symmetry. apply sorted_permutation.
Qed.

(** The same for a record that is removed: [rest] is what remains of [l]. *)
Theorem kept_of_one_less trim tau x l rest :
  Permutation l (x :: rest) -> (0 < margin trim tau l)%nat ->
  kept trim l = [] /\ kept trim rest = [] \/
  exists y, Permutation (kept trim l) (y :: kept trim rest) /\ norm y <= tau.
Proof.
  intros P M. rewrite (kept_permutation trim l (x :: rest) P). apply kept_of_one_more.
  unfold margin in *. rewrite (long_permutation tau _ _ P) in M.
  pose proof (margin_of_one_more trim tau x rest). unfold margin in *. lia.
Qed.

End TrimmedSum.

(** ** The sum of rational numbers *)

Section Sum.

Variable A : Type.
Variable value : A -> Q.
Definition size (x : A) : Q := Qabs (value x).
Variable before : A -> A -> bool.
Hypothesis total : forall x y, before x y = true \/ before y x = true.
Hypothesis transitive : forall x y z,
  before x y = true -> before y z = true -> before x z = true.
Hypothesis antisymmetric : forall x y, before x y = true -> before y x = true -> x = y.
Hypothesis refines : forall x y, before x y = true -> size x <= size y.

Fixpoint sum (l : list A) : Q :=
  match l with [] => 0 | x :: l' => value x + sum l' end.

Lemma sum_permutation l l' : Permutation l l' -> sum l == sum l'.
Proof. induction 1; simpl; lra. Qed.

Definition trimmed_sum (trim : nat) (l : list A) : Q := sum (kept _ before trim l).

(** While the margin is positive, one record moves the trimmed sum by at most tau. *)
Theorem trimmed_sum_moves trim tau x l l' :
  0 <= tau -> (0 < margin _ size trim tau l)%nat ->
  Permutation l' (x :: l) \/ Permutation l (x :: l') ->
  Qabs (trimmed_sum trim l' - trimmed_sum trim l) <= tau.
Proof.
  intros T M [P|P]; unfold trimmed_sum.
  - rewrite (kept_permutation _ before total transitive antisymmetric trim _ _ P).
    destruct (kept_of_one_more _ size before total transitive refines trim tau x l M)
      as [[-> ->]|(y & Y & N)]; [simpl; exact T|].
    pose proof (sum_permutation _ _ Y) as E. cbn [sum] in E.
    apply Qabs_Qle_condition. apply Qabs_Qle_condition in N. lra.
  - destruct (kept_of_one_less _ size before total transitive antisymmetric refines
                trim tau x l l' P M) as [[-> ->]|(y & Y & N)]; [simpl; exact T|].
    pose proof (sum_permutation _ _ Y) as E. cbn [sum] in E.
    apply Qabs_Qle_condition. apply Qabs_Qle_condition in N. lra.
Qed.

End Sum.

(** ** Sanity: an order that meets the hypotheses, and a margin of one more is not safe *)

(** On whole numbers: by norm, then by sign, here of pairs (numerator, identity). *)
Definition whole_before (x y : Z * Z) : bool :=
  (Z.abs (fst x) <? Z.abs (fst y))%Z
  || (Z.abs (fst x) =? Z.abs (fst y))%Z
     && ((fst x <? fst y)%Z || (fst x =? fst y)%Z && (snd x <=? snd y)%Z).

Definition whole (x : Z * Z) : Q := inject_Z (fst x).
Definition whole_norm (x : Z * Z) : Q := inject_Z (Z.abs (fst x)).

Ltac orders := unfold whole_before in *;
  repeat rewrite ?orb_true_iff, ?andb_true_iff, ?Z.ltb_lt, ?Z.eqb_eq, ?Z.leb_le in *.

Lemma whole_total x y : whole_before x y = true \/ whole_before y x = true.
Proof. orders. lia. Qed.
Lemma whole_transitive x y z :
  whole_before x y = true -> whole_before y z = true -> whole_before x z = true.
Proof. orders. lia. Qed.
Lemma whole_antisymmetric x y : whole_before x y = true -> whole_before y x = true -> x = y.
Proof. orders. destruct x, y; simpl in *. intros. f_equal; lia. Qed.
Lemma whole_refines x y : whole_before x y = true -> whole_norm x <= whole_norm y.
Proof. orders. unfold whole_norm. intros. rewrite <- Zle_Qle. lia. Qed.

Lemma whole_size x : size _ whole x = whole_norm x.
Proof. reflexivity. Qed.

(** So for whole numbers the theorem has no hypothesis but those of a margin. *)
Corollary trimmed_sum_of_whole_numbers trim tau x l l' :
  0 <= tau -> (0 < margin _ whole_norm trim tau l)%nat ->
  Permutation l' (x :: l) \/ Permutation l (x :: l') ->
  Qabs (trimmed_sum _ whole whole_before trim l' - trimmed_sum _ whole whole_before trim l) <= tau.
Proof.
  apply (trimmed_sum_moves _ whole whole_before whole_total whole_transitive
           whole_antisymmetric whole_refines).
Qed.

(** *** Vectors of whole numbers, by squared norm and then by coordinates *)

Definition squared_norm (v : list Z) : Z := fold_right (fun x s => x * x + s)%Z 0%Z v.

Fixpoint lexicographic (v w : list Z) : bool :=
  match v, w with
  | [], _ => true
  | _ :: _, [] => false
  | x :: v', y :: w' => (x <? y)%Z || (x =? y)%Z && lexicographic v' w'
  end.

Definition vector_before (v w : list Z) : bool :=
  (squared_norm v <? squared_norm w)%Z
  || (squared_norm v =? squared_norm w)%Z && lexicographic v w.

Definition vector_norm (v : list Z) : Q := inject_Z (squared_norm v).

Lemma lexicographic_total v w : lexicographic v w = true \/ lexicographic w v = true.
Proof.
  revert w; induction v as [|x v IH]; destruct w as [|y w]; simpl; auto.
  rewrite !orb_true_iff, !andb_true_iff, !Z.ltb_lt, !Z.eqb_eq.
  specialize (IH w). destruct (Z.lt_trichotomy x y) as [|[|]]; intuition.
Qed.

Lemma lexicographic_transitive u v w :
  lexicographic u v = true -> lexicographic v w = true -> lexicographic u w = true.
Proof.
  revert v w; induction u as [|x u IH]; destruct v as [|y v], w as [|z w]; simpl; try easy.
  rewrite !orb_true_iff, !andb_true_iff, !Z.ltb_lt, !Z.eqb_eq. specialize (IH v w). intuition lia.
Qed.

Lemma lexicographic_antisymmetric v w :
  lexicographic v w = true -> lexicographic w v = true -> v = w.
Proof.
  revert w; induction v as [|x v IH]; destruct w as [|y w]; simpl; try easy.
  rewrite !orb_true_iff, !andb_true_iff, !Z.ltb_lt, !Z.eqb_eq. intros A B.
  f_equal; [|apply IH]; intuition lia.
Qed.

Lemma vector_total v w : vector_before v w = true \/ vector_before w v = true.
Proof.
  unfold vector_before. rewrite !orb_true_iff, !andb_true_iff, !Z.ltb_lt, !Z.eqb_eq.
  pose proof (lexicographic_total v w).
  destruct (Z.lt_trichotomy (squared_norm v) (squared_norm w)) as [|[|]]; intuition.
Qed.

Lemma vector_transitive u v w :
  vector_before u v = true -> vector_before v w = true -> vector_before u w = true.
Proof.
  unfold vector_before. rewrite !orb_true_iff, !andb_true_iff, !Z.ltb_lt, !Z.eqb_eq.
  pose proof (lexicographic_transitive u v w). intuition lia.
Qed.

Lemma vector_antisymmetric v w :
  vector_before v w = true -> vector_before w v = true -> v = w.
Proof.
  unfold vector_before. rewrite !orb_true_iff, !andb_true_iff, !Z.ltb_lt, !Z.eqb_eq.
  pose proof (lexicographic_antisymmetric v w). intuition lia.
Qed.

Lemma vector_refines v w : vector_before v w = true -> vector_norm v <= vector_norm w.
Proof.
  unfold vector_before, vector_norm.
  rewrite orb_true_iff, andb_true_iff, Z.ltb_lt, Z.eqb_eq, <- Zle_Qle. lia.
Qed.

Definition vectors_kept := kept (list Z) vector_before.
Definition vectors_margin (trim : nat) (tau : Z) :=
  margin (list Z) vector_norm trim (inject_Z (tau * tau)).

(** While the margin is positive, one vector changes the sum by one vector whose
    norm is at most tau: added or removed. *)
Theorem trimmed_vectors trim tau x l l' :
  (0 < vectors_margin trim tau l)%nat ->
  Permutation l' (x :: l) \/ Permutation l (x :: l') ->
  vectors_kept trim l' = vectors_kept trim l \/
  exists y, (squared_norm y <= tau * tau)%Z /\
    (Permutation (vectors_kept trim l') (y :: vectors_kept trim l) \/
     Permutation (vectors_kept trim l) (y :: vectors_kept trim l')).
Proof.
  intros M [P|P]; unfold vectors_kept.
  - rewrite (kept_permutation _ _ vector_total vector_transitive vector_antisymmetric trim _ _ P).
    destruct (kept_of_one_more _ vector_norm _ vector_total vector_transitive vector_refines
                trim _ x l M) as [[-> ->]|(y & Y & N)]; auto.
    right. exists y. split; auto. rewrite Zle_Qle. exact N.
  - destruct (kept_of_one_less _ vector_norm _ vector_total vector_transitive vector_antisymmetric
                vector_refines trim _ x l l' P M) as [[-> ->]|(y & Y & N)]; auto.
    right. exists y. split; auto. rewrite Zle_Qle. exact N.
Qed.

(** The margin of one more than F - #{norms > tau} would be positive here, and
    one record moves the sum by 3, where tau is 2. *)
Example one_more_is_not_safe :
  let l := [(3, 1); (1, 2)]%Z in
  margin _ whole_norm 1 2 l = 0%nat /\
  kept _ whole_before 1 l = [(1, 2)]%Z /\
  kept _ whole_before 1 ((3, 3)%Z :: l) = [(1, 2); (3, 1)]%Z.
Proof. repeat split. Qed.

(** A margin that is positive: one more record moves the sum by 2 = tau. *)
Example a_positive_margin :
  let l := [(3, 1); (1, 2); (2, 4)]%Z in
  margin _ whole_norm 2 2 l = 1%nat /\
  kept _ whole_before 2 l = [(1, 2)]%Z /\
  kept _ whole_before 2 ((3, 3)%Z :: l) = [(1, 2); (2, 4)]%Z.
Proof. repeat split. Qed.
