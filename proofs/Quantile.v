(** Quantiles and their margin.

    Records are whole steps of a public lattice from lo to hi. The p-quantile,
    p = a/b, of m records is the one of rank ceil(p m), and lo of no records. One
    record can move it by more than tau only across an empty gap wider than tau
    at the right rank. The margin is the least cost of such a gap, over all
    places u that it could begin at: the records in it, and the steps of rank
    that it is away. *)

From Coq Require Import ZArith List Lia Bool Permutation.
Import ListNotations.
Open Scope Z_scope.

(** ** Definitions, which are also extracted *)

Definition count (f : Z -> bool) (l : list Z) : Z := Z.of_nat (length (filter f l)).

Fixpoint insert (x : Z) (l : list Z) : list Z :=
  match l with
  | [] => [x]
  | y :: l' => if x <=? y then x :: y :: l' else y :: insert x l'
  end.

Definition sorted (l : list Z) : list Z := fold_right insert [] l.

Definition size (l : list Z) : Z := Z.of_nat (length l).

(** ceil(a m / b) *)
Definition rank (a b m : Z) : Z := - (- (a * m) / b).

Definition quantile (lo a b : Z) (l : list Z) : Z :=
  let k := rank a b (size l) in
  if k <=? 0 then lo else nth (Z.to_nat (k - 1)) (sorted l) lo.

(** Records up to u, within (u, u + tau], and beyond. *)
Definition left_of (u : Z) (l : list Z) : Z := count (fun x => x <=? u) l.
Definition inside (tau u : Z) (l : list Z) : Z :=
  count (fun x => (u <? x) && (x <=? u + tau)) l.
Definition right_of (tau u : Z) (l : list Z) : Z := count (fun x => u + tau <? x) l.

(** Changes, of which each moves t by at most [unit], until -unit < t <= unit. *)
Definition far (unit t : Z) : Z := Z.max 0 (- (- t / unit) - 1) + Z.max 0 (- t / unit).

Definition unit (a b : Z) : Z := Z.max a (b - a).

Definition cost (a b tau : Z) (l : list Z) (u : Z) : Z :=
  inside tau u l + far (unit a b) (a * right_of tau u l - (b - a) * left_of u l).

Definition places (lo hi tau : Z) : list Z :=
  map (fun i => lo + Z.of_nat i) (seq 0 (Z.to_nat (hi - tau - lo))).

Definition margin (lo hi a b tau cap : Z) (l : list Z) : Z :=
  fold_right Z.min cap (map (cost a b tau l) (places lo hi tau)).

(** ** The quantile, by counts *)

Lemma count_cons f x l : count f (x :: l) = (if f x then 1 else 0) + count f l.
Proof. unfold count; simpl. destruct (f x); simpl length; lia. Qed.

Lemma count_nonneg f l : 0 <= count f l.
Proof. unfold count. lia. Qed.

Lemma insert_permutation x l : Permutation (x :: l) (insert x l).
Proof.
  induction l as [|y l IH]; simpl; auto. destruct (x <=? y); auto. rewrite perm_swap. auto.
Qed.

Lemma sorted_permutation l : Permutation l (sorted l).
Proof. induction l; simpl; auto. rewrite <- insert_permutation. auto. Qed.

Lemma count_permutation f l l' : Permutation l l' -> count f l = count f l'.
Proof. induction 1; rewrite ?count_cons; lia. Qed.

Fixpoint ascending (l : list Z) : Prop :=
  match l with
  | [] => True
  | x :: l' => Forall (fun y => x <= y) l' /\ ascending l'
  end.

Lemma insert_ascending x l : ascending l -> ascending (insert x l).
Proof.
  induction l as [|y l IH]; simpl; auto. intros [F S].
  destruct (Z.leb_spec x y); simpl.
  - split; [|auto]. constructor; auto. eapply Forall_impl; [|exact F]. simpl; lia.
  - split; [|auto]. apply Permutation_Forall with (x :: l); [apply insert_permutation|].
    constructor; auto. lia.
Qed.

Lemma sorted_ascending l : ascending (sorted l).
Proof. induction l; simpl; auto using insert_ascending. Qed.

Lemma nth_at_most l u k d :
  ascending l -> (k < length l)%nat -> (nth k l d <= u <-> Z.of_nat k < left_of u l).
Proof.
  unfold left_of. revert k; induction l as [|x l IH]; intros k S L; simpl in L; [lia|].
  destruct S as [F S]. rewrite count_cons. destruct (Z.leb_spec x u) as [le|gt].
  - destruct k; simpl nth.
    + pose proof (count_nonneg (fun x => x <=? u) l). lia.
    + rewrite IH by (auto; lia). lia.
  - assert (count (fun x => x <=? u) l = 0) as ->.
    { clear - F gt. induction F as [|y l P F IH]; [reflexivity|]. rewrite count_cons.
      destruct (Z.leb_spec y u); lia. }
    assert (x <= nth k (x :: l) d); [|lia].
    destruct k; simpl; [lia|]. rewrite Forall_forall in F. apply F, nth_In. lia.
Qed.

Section Margin.

Variables lo hi a b tau : Z.
Hypothesis fraction : 0 < a <= b.
Hypothesis proposal : 0 <= tau.

Lemma rank_at_most m c : rank a b m <= c <-> a * m <= b * c.
Proof.
  unfold rank. pose proof (Z.mul_div_le (- (a * m)) b ltac:(lia)).
  pose proof (Z.mul_succ_div_gt (- (a * m)) b ltac:(lia)). split; intros; nia.
Qed.

Lemma rank_bounds m : 0 <= m -> 0 <= rank a b m <= m.
Proof.
  intros M. split.
  - destruct (Z_le_gt_dec 0 (rank a b m)); auto. assert (rank a b m <= -1) as H by lia.
    apply rank_at_most in H. nia.
  - apply rank_at_most. nia.
Qed.

(** The quantile is at most u exactly if p m <= #{x <= u}. *)
Lemma quantile_at_most l u :
  lo <= u -> (quantile lo a b l <= u <-> a * size l <= b * left_of u l).
Proof.
  intros L. rewrite <- rank_at_most. unfold quantile.
  pose proof (rank_bounds (size l) ltac:(unfold size; lia)) as B.
  pose proof (count_nonneg (fun x => x <=? u) l) as C. fold (left_of u l) in C.
  destruct (Z.leb_spec (rank a b (size l)) 0); [split; lia|].
  assert (E : left_of u l = left_of u (sorted l))
    by (apply count_permutation, sorted_permutation).
  rewrite E, nth_at_most.
  - lia.
  - apply sorted_ascending.
  - rewrite <- (Permutation_length (sorted_permutation l)). unfold size in *. lia.
Qed.

Lemma quantile_low l : Forall (fun x => lo <= x <= hi) l -> lo <= quantile lo a b l.
Proof.
  intros F. unfold quantile. destruct (Z.leb_spec (rank a b (size l)) 0); [lia|].
  assert (G : Forall (fun x => lo <= x <= hi) (sorted l))
    by (eapply Permutation_Forall; [apply sorted_permutation|auto]).
  destruct (nth_in_or_default (Z.to_nat (rank a b (size l) - 1)) (sorted l) lo) as [I| ->]; [|lia].
  rewrite Forall_forall in G. apply G in I. lia.
Qed.

Lemma quantile_high l : lo <= hi -> Forall (fun x => lo <= x <= hi) l -> quantile lo a b l <= hi.
Proof.
  intros LH F. unfold quantile. destruct (Z.leb_spec (rank a b (size l)) 0); [lia|].
  assert (G : Forall (fun x => lo <= x <= hi) (sorted l))
    by (eapply Permutation_Forall; [apply sorted_permutation|auto]).
  destruct (nth_in_or_default (Z.to_nat (rank a b (size l) - 1)) (sorted l) lo) as [I| ->]; [|lia].
  rewrite Forall_forall in G. apply G in I. lia.
Qed.

Lemma parts u l : size l = left_of u l + inside tau u l + right_of tau u l.
Proof.
  unfold left_of, inside, right_of. induction l as [|x l IH]; [reflexivity|].
  rewrite !count_cons. unfold size in *. simpl length.
  destruct (Z.leb_spec x u), (Z.ltb_spec u x), (Z.leb_spec x (u + tau)), (Z.ltb_spec (u + tau) x);
    cbn [andb]; lia.
Qed.

Lemma upto u l : left_of (u + tau) l = left_of u l + inside tau u l.
Proof.
  unfold left_of, inside. induction l as [|x l IH]; [reflexivity|]. rewrite !count_cons.
  destruct (Z.leb_spec x u), (Z.ltb_spec u x), (Z.leb_spec x (u + tau)); cbn [andb]; lia.
Qed.

(** ** The margin changes by at most one *)

Lemma unit_positive : 0 < unit a b.
Proof. unfold unit. lia. Qed.

Lemma far_close t s : 0 <= s <= unit a b -> Z.abs (far (unit a b) (t + s) - far (unit a b) t) <= 1.
Proof.
  intros B. pose proof unit_positive. unfold far.
  assert (- (t + s) / unit a b <= - t / unit a b) by (apply Z.div_le_mono; lia).
  assert (- t / unit a b - 1 <= - (t + s) / unit a b).
  { replace (- t / unit a b - 1) with ((- t + (-1) * unit a b) / unit a b)
      by (rewrite Z.div_add by lia; lia).
    apply Z.div_le_mono; lia. }
  lia.
Qed.

Lemma far_nonneg t : 0 <= far (unit a b) t.
Proof. unfold far. lia. Qed.

Lemma far_zero t : - unit a b < t <= unit a b -> far (unit a b) t = 0.
Proof.
  intros B. pose proof unit_positive. unfold far.
  assert (-1 <= - t / unit a b) by (apply Z.div_le_lower_bound; lia).
  assert (- t / unit a b < 1) by (apply Z.div_lt_upper_bound; lia). lia.
Qed.

Lemma cost_close x l u : Z.abs (cost a b tau (x :: l) u - cost a b tau l u) <= 1.
Proof.
  unfold cost, inside, left_of, right_of. rewrite !count_cons.
  set (I := count _ l); set (L := count (fun y => y <=? u) l); set (R := count _ l).
  assert (U : a <= unit a b /\ b - a <= unit a b) by (unfold unit; lia).
  destruct (Z.leb_spec x u), (Z.ltb_spec u x), (Z.leb_spec x (u + tau)), (Z.ltb_spec (u + tau) x);
    try lia; cbn [andb].
  - pose proof (far_close (a * (0 + R) - (b - a) * (1 + L)) (b - a) ltac:(lia)).
    replace (a * (0 + R) - (b - a) * (1 + L) + (b - a)) with (a * R - (b - a) * L) in H3 by ring.
    lia.
  - replace (a * (0 + R) - (b - a) * (0 + L)) with (a * R - (b - a) * L) by ring. lia.
  - pose proof (far_close (a * R - (b - a) * L) a ltac:(lia)).
    replace (a * R - (b - a) * L + a) with (a * (1 + R) - (b - a) * (0 + L)) in H3 by ring. lia.
Qed.

Lemma fold_min_close f g cap us :
  (forall u : Z, Z.abs (f u - g u) <= 1) ->
  Z.abs (fold_right Z.min cap (map f us) - fold_right Z.min cap (map g us)) <= 1.
Proof. intros H. induction us as [|u us IH]; simpl; [lia|]. specialize (H u). lia. Qed.

(** Adding or removing a record changes the margin by at most one. *)
Theorem margin_of_one_more cap x l :
  Z.abs (margin lo hi a b tau cap (x :: l) - margin lo hi a b tau cap l) <= 1.
Proof. apply fold_min_close. intros u. apply cost_close. Qed.

(** ** While it is positive, the quantile moves by at most tau *)

Lemma fold_min_positive (f : Z -> Z) cap us u :
  0 < fold_right Z.min cap (map f us) -> In u us -> 0 < f u.
Proof. induction us as [|v us IH]; simpl; [easy|]. intros M [->|I]; [lia|]. apply IH; auto; lia. Qed.

Lemma margin_positive cap l u :
  0 < margin lo hi a b tau cap l -> lo <= u < hi - tau -> 0 < cost a b tau l u.
Proof.
  intros M B. eapply fold_min_positive; [exact M|]. apply in_map_iff.
  exists (Z.to_nat (u - lo)). split; [lia|]. apply in_seq. lia.
Qed.

(** Where one more record moves the quantile across a gap wider than tau, the
    gap costs nothing, with the record and without it. *)
Lemma crossing x l u v :
  lo <= u -> u + tau < v ->
  quantile lo a b l <= u /\ v <= quantile lo a b (x :: l) \/
  quantile lo a b (x :: l) <= u /\ v <= quantile lo a b l ->
  cost a b tau l u = 0 /\ cost a b tau (x :: l) u = 0.
Proof.
  intros L V H. pose proof unit_positive as P.
  assert (U : a <= unit a b /\ b - a <= unit a b) by (unfold unit; lia).
  pose proof (quantile_at_most l u L) as A1.
  pose proof (quantile_at_most l (u + tau) ltac:(lia)) as A2.
  pose proof (quantile_at_most (x :: l) u L) as B1.
  pose proof (quantile_at_most (x :: l) (u + tau) ltac:(lia)) as B2.
  rewrite !upto in A2, B2.
  pose proof (parts u l) as S1. pose proof (parts u (x :: l)) as S2.
  assert (N : size (x :: l) = 1 + size l) by (unfold size; simpl length; lia).
  unfold cost. unfold left_of, inside, right_of in *. rewrite !count_cons in *.
  set (I := count (fun x => (u <? x) && _) l) in *.
  set (Lf := count (fun x => x <=? u) l) in *.
  set (R := count (fun x => u + tau <? x) l) in *.
  assert (0 <= I) by apply count_nonneg.
  set (m := size l) in *. rewrite N in *.
  destruct (Z.leb_spec x u), (Z.ltb_spec u x), (Z.leb_spec x (u + tau)), (Z.ltb_spec (u + tau) x);
    try lia; cbn [andb] in *; destruct H as [[X Y]|[X Y]];
    (assert (I = 0) by nia || (exfalso; nia));
    split; rewrite far_zero by nia; lia.
Qed.

(** Both for a record that is added and for one that is removed: it suffices
    that one of the two margins is positive. *)
Theorem quantile_moves cap x l :
  lo <= hi -> Forall (fun y => lo <= y <= hi) (x :: l) ->
  0 < margin lo hi a b tau cap l \/ 0 < margin lo hi a b tau cap (x :: l) ->
  Z.abs (quantile lo a b (x :: l) - quantile lo a b l) <= tau.
Proof.
  intros LH F M. inversion_clear F as [|? ? X F'].
  assert (F : Forall (fun y => lo <= y <= hi) (x :: l)) by (constructor; auto).
  pose proof (quantile_low l F') as A. pose proof (quantile_high l LH F') as B.
  pose proof (quantile_low _ F) as C. pose proof (quantile_high _ LH F) as D.
  set (v := quantile lo a b l) in *. set (w := quantile lo a b (x :: l)) in *.
  destruct (Z_le_gt_dec (Z.abs (w - v)) tau) as [|far']; auto. exfalso.
  destruct (Z_le_gt_dec v w).
  - destruct (crossing x l v w ltac:(lia) ltac:(lia)) as [Z1 Z2]; [left; unfold v, w; lia|].
    destruct M as [M|M]; apply (margin_positive cap _ v) in M; lia.
  - destruct (crossing x l w v ltac:(lia) ltac:(lia)) as [Z1 Z2]; [right; unfold v, w; lia|].
    destruct M as [M|M]; apply (margin_positive cap _ w) in M; lia.
Qed.

End Margin.

(** ** The order of rows does not matter, so a removed record is one that was added *)

Lemma margin_permutation lo hi a b tau cap l l' :
  Permutation l l' -> margin lo hi a b tau cap l = margin lo hi a b tau cap l'.
Proof.
  intros P. unfold margin. f_equal. apply map_ext. intros u.
  unfold cost, inside, right_of, left_of. rewrite !(count_permutation _ l l' P). reflexivity.
Qed.

Lemma quantile_permutation lo hi a b l l' :
  0 < a <= b -> Forall (fun x => lo <= x <= hi) l -> Permutation l l' ->
  quantile lo a b l = quantile lo a b l'.
Proof.
  intros H F P. assert (F' : Forall (fun x => lo <= x <= hi) l') by (eapply Permutation_Forall; eauto).
  assert (S : size l = size l') by (unfold size; rewrite (Permutation_length P); reflexivity).
  assert (C : forall u, left_of u l = left_of u l') by (intros u; apply count_permutation; auto).
  pose proof (quantile_low lo hi a b l F). pose proof (quantile_low lo hi a b l' F').
  apply Z.le_antisymm; apply (quantile_at_most lo a b H); auto.
  - rewrite S, C. apply (quantile_at_most lo a b H); auto. lia.
  - rewrite <- S, <- C. apply (quantile_at_most lo a b H); auto. lia.
Qed.

(** ** The interquartile range *)

Definition interquartile_range (lo : Z) (l : list Z) : Z := quantile lo 3 4 l - quantile lo 1 4 l.

(** The smaller margin of the two quartiles is safe for their difference. *)
Theorem interquartile_range_moves lo hi tau cap x l :
  lo <= hi -> 0 <= tau -> Forall (fun y => lo <= y <= hi) (x :: l) ->
  0 < Z.min (margin lo hi 1 4 tau cap l) (margin lo hi 3 4 tau cap l) \/
  0 < Z.min (margin lo hi 1 4 tau cap (x :: l)) (margin lo hi 3 4 tau cap (x :: l)) ->
  Z.abs (interquartile_range lo (x :: l) - interquartile_range lo l) <= tau.
Proof.
  intros LH T F M. unfold interquartile_range.
  pose proof (quantile_moves lo hi 1 4 tau ltac:(lia) T cap x l LH F ltac:(lia)) as Q1.
  pose proof (quantile_moves lo hi 3 4 tau ltac:(lia) T cap x l LH F ltac:(lia)) as Q3.
  inversion_clear F as [|? ? X F']. assert (F : Forall (fun y => lo <= y <= hi) (x :: l))
    by (constructor; auto).
  (* The quartiles never move in opposite directions. *)
  set (p := quantile lo 1 4 l) in *. set (p' := quantile lo 1 4 (x :: l)) in *.
  set (q := quantile lo 3 4 l) in *. set (q' := quantile lo 3 4 (x :: l)) in *.
  assert (N : size (x :: l) = 1 + size l) by (unfold size; simpl length; lia).
  assert (0 <= size l) by (unfold size; lia).
  assert (lo <= p) by (eapply quantile_low; eauto).
  assert (lo <= p') by (eapply quantile_low; eauto).
  assert (lo <= q) by (eapply quantile_low; eauto).
  assert (lo <= q') by (eapply quantile_low; eauto).
  assert (same : ~ (p < p' /\ q' < q) /\ ~ (p' < p /\ q < q')).
  { split; intros [D1 D2].
    - pose proof (quantile_at_most lo 1 4 ltac:(lia) l p ltac:(lia)) as A.
      pose proof (quantile_at_most lo 1 4 ltac:(lia) (x :: l) p ltac:(lia)) as A'.
      pose proof (quantile_at_most lo 3 4 ltac:(lia) l q' ltac:(lia)) as B.
      pose proof (quantile_at_most lo 3 4 ltac:(lia) (x :: l) q' ltac:(lia)) as B'.
      fold p in A. fold p' in A'. fold q in B. fold q' in B'.
      unfold left_of in *. rewrite !count_cons, !N in *.
      destruct (Z.leb_spec x p), (Z.leb_spec x q'); lia.
    - pose proof (quantile_at_most lo 1 4 ltac:(lia) l p' ltac:(lia)) as A.
      pose proof (quantile_at_most lo 1 4 ltac:(lia) (x :: l) p' ltac:(lia)) as A'.
      pose proof (quantile_at_most lo 3 4 ltac:(lia) l q ltac:(lia)) as B.
      pose proof (quantile_at_most lo 3 4 ltac:(lia) (x :: l) q ltac:(lia)) as B'.
      pose proof (quantile_at_most lo 1 4 ltac:(lia) l q ltac:(lia)) as C.
      fold p in A, C. fold p' in A'. fold q in B. fold q' in B'.
      unfold left_of in *. rewrite !count_cons, !N in *.
      destruct (Z.leb_spec x p'), (Z.leb_spec x q); lia. }
  lia.
Qed.

(** ** Sanity: a positive margin, and a margin of one more is not safe *)

(** The median of seven records, of which four must change before it can jump. *)
Example a_positive_margin :
  margin 0 20 1 2 3 9 [0; 9; 10; 10; 10; 11; 20] = 4.
Proof. reflexivity. Qed.

(** Here the margin is 0, and one record moves the median by 10 > tau = 3: a
    margin larger by one would not be safe. *)
Example one_more_is_not_safe :
  let l := [0; 10] in
  margin 0 20 1 2 3 9 l = 0 /\ quantile 0 1 2 l = 0 /\ quantile 0 1 2 (20 :: l) = 10.
Proof. repeat split. Qed.
