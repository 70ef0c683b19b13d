(** Certificates by counts: how many records a prediction withstands.

    A table holds, for each class, a row of counts of cells and the number of
    records of the class. All of them are integers, with whatever noise. A query
    weighs each cell by 0..steps; the score of a class is the sum of the weights
    of its counts less half of [steps] per record and table, in units of
    1/(2 steps tables). The first class of the largest score is predicted. *)

From Coq Require Import ZArith List Lia Bool Arith Permutation.
Import ListNotations.
Open Scope Z_scope.

(** ** Definitions, which are also extracted *)

Definition entry (l : list Z) (i : nat) : Z := nth i l 0.

Fixpoint dot (weights row : list Z) : Z :=
  match weights, row with
  | w :: weights', n :: row' => w * n + dot weights' row'
  | _, _ => 0
  end.

Fixpoint bump (row : list Z) (place : nat) (d : Z) : list Z :=
  match row, place with
  | [], _ => []
  | n :: row', O => (n + d) :: row'
  | n :: row', S place' => n :: bump row' place' d
  end.

(** One row of counts and one total per class. *)
Definition table := list (list Z * Z).

(** A record: its class, and the cell that it is in, in each of the tables. *)
Record record := { class : nat; places : list nat }.

(** A record is inserted (d = 1) or removed (d = -1). *)
Fixpoint change (t : table) (c : nat) (ps : list nat) (d : Z) : table :=
  match t, c with
  | [], _ => []
  | (row, total) :: t', O => (fold_right (fun p r => bump r p d) row ps, total + d) :: t'
  | one :: t', S c' => one :: change t' c' ps d
  end.

Inductive edit := Insert (r : record) | Remove (r : record).

Definition edited (e : edit) (t : table) : table :=
  match e with
  | Insert r => change t (class r) (places r) 1
  | Remove r => change t (class r) (places r) (-1)
  end.

Definition edited_all (es : list edit) (t : table) : table := fold_right edited t es.

Definition score (steps : Z) (tables : nat) (weights : list Z) (one : list Z * Z) : Z :=
  2 * dot weights (fst one) - steps * Z.of_nat tables * snd one.

Definition scores (steps : Z) (tables : nat) (weights : list Z) (t : table) : list Z :=
  map (score steps tables weights) t.

Definition largest (l : list Z) : Z :=
  match l with [] => 0 | x :: l' => fold_right Z.max x l' end.
Definition least (l : list Z) : Z :=
  match l with [] => 0 | x :: l' => fold_right Z.min x l' end.

(** Sums over the tables, of the sizes given, of one number per table. *)
Fixpoint by_table (f : list Z -> Z) (weights : list Z) (sizes : list nat) : Z :=
  match sizes with
  | [] => 0
  | n :: sizes' => f (firstn n weights) + by_table f (skipn n weights) sizes'
  end.

(** The most that one record can move a score. *)
Definition moves (steps : Z) (weights : list Z) (sizes : list nat) : Z :=
  let middle := steps * Z.of_nat (length sizes) in
  Z.max (2 * by_table largest weights sizes - middle)
        (middle - 2 * by_table least weights sizes).

Fixpoint scan (l : list Z) (i best : nat) (value : Z) : nat :=
  match l with
  | [] => best
  | x :: l' => if value <? x then scan l' (S i) i x else scan l' (S i) best value
  end.

(** The first place of the largest score. *)
Definition winner (l : list Z) : nat :=
  match l with [] => 0%nat | x :: l' => scan l' 1 0 x end.

Definition reach (m : Z) (l : list Z) (a b : nat) : Z :=
  (entry l a - entry l b - (if (b <? a)%nat then 1 else 0)) / Z.max m 1.

Definition others (l : list Z) (a : nat) : list nat :=
  filter (fun b => negb (b =? a)%nat) (seq 0 (length l)).

(** What is released: counts with noise, of which there is one for each count. *)
Fixpoint added (row noise : list Z) : list Z :=
  match row, noise with n :: row', e :: noise' => (n + e) :: added row' noise' | _, _ => [] end.

Fixpoint noisy (t noise : table) : table :=
  match t, noise with
  | (row, total) :: t', (e, d) :: noise' => (added row e, total + d) :: noisy t' noise'
  | _, _ => []
  end.

(** The exact counts of a data set, from those of no records. *)
Definition counted (data : list record) (zeros : table) : table :=
  edited_all (map Insert data) zeros.

(** The radius; None where no record can change the prediction. *)
Definition radius (m : Z) (l : list Z) : option Z :=
  if m =? 0 then None
  else match map (reach m l (winner l)) (others l (winner l)) with
       | [] => None
       | x :: rest => Some (fold_right Z.min x rest)
       end.

(** ** What a record and a table must look like *)

Fixpoint placed (start : nat) (sizes ps : list nat) : Prop :=
  match sizes, ps with
  | [], [] => True
  | n :: sizes', p :: ps' => (start <= p < start + n)%nat /\ placed (start + n) sizes' ps'
  | _, _ => False
  end.

Definition valid (sizes : list nat) (classes : nat) (e : edit) : Prop :=
  match e with
  | Insert r | Remove r => (class r < classes)%nat /\ placed 0 sizes (places r)
  end.

Definition width (sizes : list nat) : nat := fold_right Nat.add 0%nat sizes.

Definition well_formed (sizes : list nat) (t : table) : Prop :=
  Forall (fun one => length (fst one) = width sizes) t.

Definition weighed (steps : Z) (sizes : list nat) (weights : list Z) : Prop :=
  length weights = width sizes /\ Forall (fun w => 0 <= w <= steps) weights.

(** ** One record *)

Lemma bump_length row p d : length (bump row p d) = length row.
Proof. revert p; induction row; destruct p; simpl; auto. Qed.

Lemma bumps_length row ps d :
  length (fold_right (fun p r => bump r p d) row ps) = length row.
Proof. induction ps; simpl; rewrite ?bump_length; auto. Qed.

Lemma dot_bump weights row p d :
  length weights = length row -> (p < length row)%nat ->
  dot weights (bump row p d) = dot weights row + d * entry weights p.
Proof.
  revert row p; induction weights as [|w ws IH]; destruct row; simpl; try lia.
  intros p E L. destruct p; unfold entry in *; simpl.
  - lia.
  - rewrite IH by lia. lia.
Qed.

Definition weight_of (weights : list Z) (ps : list nat) : Z :=
  fold_right (fun p sum => entry weights p + sum) 0 ps.

Lemma dot_bumps weights row ps d :
  length weights = length row -> Forall (fun p => (p < length row)%nat) ps ->
  dot weights (fold_right (fun p r => bump r p d) row ps)
  = dot weights row + d * weight_of weights ps.
Proof.
  intros E; induction 1 as [|p ps L F IH]; simpl; [lia|].
  rewrite dot_bump; rewrite ?bumps_length; auto. lia.
Qed.

Lemma placed_bound start sizes ps :
  placed start sizes ps -> Forall (fun p => (p < start + width sizes)%nat) ps.
Proof.
  revert start ps; induction sizes as [|n sizes IH]; destruct ps; simpl; try tauto; auto.
  intros [B P]. constructor; [lia|]. apply IH in P. eapply Forall_impl; [|exact P].
  simpl; intros; lia.
Qed.

Lemma entry_skipn start l p : (start <= p)%nat -> entry l p = entry (skipn start l) (p - start).
Proof.
  unfold entry; revert l p; induction start; intros l p H; [simpl; f_equal; lia|].
  destruct l; [destruct (p - S start)%nat, p; reflexivity|].
  destruct p; [lia|]. simpl. apply IHstart; lia.
Qed.

Lemma largest_ge x l : In x l -> x <= largest l.
Proof.
  destruct l as [|y l]; [easy|]. simpl.
  assert (y <= fold_right Z.max y l) by (induction l; simpl; lia).
  intros [->|I]; auto. induction l; [easy|]. simpl in *. destruct I; [lia|].
  assert (y <= fold_right Z.max y l) by (clear; induction l; simpl; lia). specialize (IHl H1 H0). lia.
Qed.

Lemma least_le x l : In x l -> least l <= x.
Proof.
  destruct l as [|y l]; [easy|]. simpl.
  assert (fold_right Z.min y l <= y) by (induction l; simpl; lia).
  intros [->|I]; auto. induction l; [easy|]. simpl in *. destruct I; [lia|].
  assert (fold_right Z.min y l <= y) by (clear; induction l; simpl; lia). specialize (IHl H1 H0). lia.
Qed.

Lemma entry_segment n l i : (i < n)%nat -> (i < length l)%nat -> In (entry l i) (firstn n l).
Proof.
  unfold entry; revert n i; induction l; simpl; intros n i A B; [lia|].
  destruct n; [lia|]. destruct i; simpl; [auto|]. right; apply IHl; lia.
Qed.

Lemma skipn_add {A} (l : list A) m n : skipn m (skipn n l) = skipn (n + m) l.
Proof. revert l; induction n; destruct l; simpl; auto using skipn_nil. Qed.

(** The weight of a record lies between the sums of the least and of the
    largest weights. *)
Lemma weight_between weights start sizes ps :
  (start + width sizes <= length weights)%nat -> placed start sizes ps ->
  by_table least (skipn start weights) sizes <= weight_of weights ps
  <= by_table largest (skipn start weights) sizes.
Proof.
  revert start ps; induction sizes as [|n sizes IH]; destruct ps as [|p ps]; simpl; try easy.
  intros L [B P]. destruct (IH (start + n)%nat ps ltac:(lia) P) as [lo hi]. rewrite !skipn_add.
  rewrite (entry_skipn start) by lia.
  assert (I : In (entry (skipn start weights) (p - start)) (firstn n (skipn start weights)))
    by (apply entry_segment; rewrite ?skipn_length; lia).
  pose proof (largest_ge _ _ I). pose proof (least_le _ _ I). lia.
Qed.

(** m of the theorem: a record moves a score by at most this. *)
Lemma record_moves steps weights sizes ps :
  length weights = width sizes -> placed 0 sizes ps ->
  Z.abs (2 * weight_of weights ps - steps * Z.of_nat (length sizes)) <= moves steps weights sizes.
Proof.
  intros L P. pose proof (weight_between weights 0 sizes ps ltac:(lia) P). unfold moves.
  simpl in H. lia.
Qed.

Lemma by_table_bounds steps weights sizes :
  length weights = width sizes -> 0 <= steps ->
  Forall (fun w => 0 <= w <= steps) weights ->
  by_table largest weights sizes <= steps * Z.of_nat (length sizes) /\
  0 <= by_table least weights sizes.
Proof.
  intros L S; revert weights L; induction sizes as [|n sizes IH]; intros weights L F; [simpl; lia|].
  simpl in L. simpl by_table. simpl length.
  destruct (IH (skipn n weights)) as [A B].
  { rewrite skipn_length; lia. }
  { rewrite <- (firstn_skipn n weights) in F. apply Forall_app in F. tauto. }
  assert (G : Forall (fun w => 0 <= w <= steps) (firstn n weights)).
  { rewrite <- (firstn_skipn n weights) in F. apply Forall_app in F. tauto. }
  assert (largest (firstn n weights) <= steps).
  { clear - G S. destruct G as [|x l P G]; simpl; [lia|]. induction G; simpl; lia. }
  assert (0 <= least (firstn n weights)).
  { clear - G S. destruct G as [|x l P G]; simpl; [lia|]. induction G; simpl; lia. }
  lia.
Qed.

(** One record moves a score by at most one half, [steps * tables] of the unit. *)
Theorem half_a_record steps weights sizes :
  0 <= steps -> weighed steps sizes weights ->
  moves steps weights sizes <= steps * Z.of_nat (length sizes).
Proof.
  intros S [L F]. destruct (by_table_bounds _ _ _ L S F). unfold moves. lia.
Qed.

(** ** Many records *)

Lemma change_length t c ps d : length (change t c ps d) = length t.
Proof. revert c; induction t as [|[row total] t IH]; destruct c; simpl; auto. Qed.

Lemma change_well_formed sizes t c ps d :
  well_formed sizes t -> well_formed sizes (change t c ps d).
Proof.
  unfold well_formed; intros F; revert c; induction F as [|[row total] t E F IH]; intros c; [constructor|].
  destruct c; simpl; constructor; simpl in *; rewrite ?bumps_length; auto.
Qed.

Lemma change_score steps sizes weights t c ps d b :
  length weights = width sizes -> well_formed sizes t -> placed 0 sizes ps ->
  (c < length t)%nat ->
  entry (scores steps (length sizes) weights (change t c ps d)) b
  = entry (scores steps (length sizes) weights t) b
    + (if (b =? c)%nat then d * (2 * weight_of weights ps - steps * Z.of_nat (length sizes)) else 0).
Proof.
  intros L W P. revert c b; induction W as [|[row total] t E W IH]; intros c b C; simpl in C; [lia|].
  simpl in E. destruct c, b; unfold entry, scores; cbn [change map nth Nat.eqb]; unfold score; cbn [fst snd].
  - rewrite dot_bumps; rewrite ?E; auto.
    + ring.
    + apply placed_bound in P. exact P.
  - ring.
  - ring.
  - apply IH. lia.
Qed.

Lemma edited_length e t : length (edited e t) = length t.
Proof. destruct e; apply change_length. Qed.

Lemma edited_all_length es t : length (edited_all es t) = length t.
Proof. induction es; simpl; rewrite ?edited_length; auto. Qed.

Lemma edited_well_formed sizes es t : well_formed sizes t -> well_formed sizes (edited_all es t).
Proof. intros W; induction es as [|e es IH]; simpl; auto. destruct e; apply change_well_formed; auto. Qed.

(** r records move two scores, together, by at most r times m. *)
Theorem records_move_a_gap steps sizes weights t es a b :
  weighed steps sizes weights -> well_formed sizes t ->
  Forall (valid sizes (length t)) es -> a <> b ->
  let before := scores steps (length sizes) weights t in
  let after := scores steps (length sizes) weights (edited_all es t) in
  Z.abs (entry after a - entry before a) + Z.abs (entry after b - entry before b)
  <= Z.of_nat (length es) * moves steps weights sizes.
Proof.
  intros [L _] W F ab. induction F as [|e es V F IH]; [simpl; lia|].
  cbv zeta in *. change (edited_all (e :: es) t) with (edited e (edited_all es t)).
  set (s := edited_all es t) in *.
  assert (Ws : well_formed sizes s) by (apply edited_well_formed; auto).
  assert (Ls : length s = length t) by apply edited_all_length.
  assert (step : exists c x, Z.abs x <= moves steps weights sizes /\ forall k,
     entry (scores steps (length sizes) weights (edited e s)) k
     = entry (scores steps (length sizes) weights s) k + (if (k =? c)%nat then x else 0)).
  { destruct e as [r|r]; destruct V as [C P]; exists (class r); simpl.
    - exists (1 * (2 * weight_of weights (places r) - steps * Z.of_nat (length sizes))).
      split; [pose proof (record_moves steps _ _ _ L P); lia|].
      intros k. apply change_score; auto; lia.
    - exists (-1 * (2 * weight_of weights (places r) - steps * Z.of_nat (length sizes))).
      split; [pose proof (record_moves steps _ _ _ L P); lia|].
      intros k. apply change_score; auto; lia. }
  destruct step as (c & x & X & step). rewrite !step.
  replace (Z.of_nat (length (e :: es))) with (Z.of_nat (length es) + 1) by (simpl length; lia).
  destruct (Nat.eqb_spec a c), (Nat.eqb_spec b c); subst; try congruence; lia.
Qed.

(** ** The prediction *)

(** a is the first place of the largest entry. *)
Definition wins (l : list Z) (a : nat) : Prop :=
  (a < length l)%nat /\
  forall b, (b < length l)%nat ->
  entry l b <= entry l a /\ ((b < a)%nat -> entry l b < entry l a).

Lemma wins_unique l a b : wins l a -> wins l b -> a = b.
Proof.
  intros [A HA] [B HB]. destruct (HA b B), (HB a A).
  destruct (Nat.lt_trichotomy a b) as [|[|]]; auto; exfalso; lia.
Qed.

Lemma scan_wins l seen best :
  (best < length seen)%nat ->
  (forall b, (b < length seen)%nat ->
     entry seen b <= entry seen best /\ ((b < best)%nat -> entry seen b < entry seen best)) ->
  wins (seen ++ l) (scan l (length seen) best (entry seen best)).
Proof.
  revert seen best; induction l as [|x l IH]; intros seen best B H; simpl.
  { rewrite app_nil_r. split; auto. }
  assert (N : forall b, (b < length seen)%nat -> entry (seen ++ [x]) b = entry seen b)
    by (intros; unfold entry; rewrite app_nth1; auto).
  assert (M : entry (seen ++ [x]) (length seen) = x)
    by (unfold entry; rewrite app_nth2, Nat.sub_diag; auto).
  assert (E : length (seen ++ [x]) = S (length seen)) by (rewrite app_length; simpl; lia).
  replace (seen ++ x :: l) with ((seen ++ [x]) ++ l) by (rewrite <- app_assoc; auto).
  rewrite <- E. destruct (Z.ltb_spec (entry seen best) x).
  - specialize (IH (seen ++ [x]) (length seen)). rewrite M in IH. apply IH; [lia|].
    intros b Hb. rewrite E in Hb. destruct (Nat.eq_dec b (length seen)) as [->|]; [lia|].
    rewrite N by lia. destruct (H b ltac:(lia)); lia.
  - specialize (IH (seen ++ [x]) best). rewrite (N best) in IH by lia. apply IH; [lia|].
    intros b Hb. rewrite E in Hb.
    destruct (Nat.eq_dec b (length seen)) as [->|]; [rewrite M; lia|].
    rewrite N by lia. destruct (H b ltac:(lia)); lia.
Qed.

Lemma winner_wins l : l <> [] -> wins l (winner l).
Proof.
  destruct l as [|x l]; [easy|]. intros _. apply (scan_wins l [x] 0); simpl; [lia|].
  intros b B. replace b with 0%nat by lia. lia.
Qed.

Lemma fold_min_le x l y : In y (x :: l) -> fold_right Z.min x l <= y.
Proof. apply (least_le y (x :: l)). Qed.

Lemma radius_reach m l r b :
  radius m l = Some r -> (b < length l)%nat -> b <> winner l -> r <= reach m l (winner l) b.
Proof.
  unfold radius. destruct (m =? 0); [easy|].
  intros R B N. assert (I : In (reach m l (winner l) b)
                             (map (reach m l (winner l)) (others l (winner l)))).
  { apply in_map. apply filter_In. split; [apply in_seq; lia|].
    destruct (Nat.eqb_spec b (winner l)); easy. }
  destruct (map _ _); [easy|]. injection R as <-. apply fold_min_le, I.
Qed.

Lemma radius_none m l b :
  radius m l = None -> (b < length l)%nat -> b <> winner l -> m = 0.
Proof.
  unfold radius. destruct (Z.eqb_spec m 0); auto. intros R B N.
  assert (I : In (reach m l (winner l) b) (map (reach m l (winner l)) (others l (winner l)))).
  { apply in_map. apply filter_In. split; [apply in_seq; lia|].
    destruct (Nat.eqb_spec b (winner l)); easy. }
  destruct (map _ _); easy.
Qed.

Lemma moves_nonneg steps weights sizes ps :
  length weights = width sizes -> placed 0 sizes ps -> 0 <= moves steps weights sizes.
Proof. intros L P. pose proof (record_moves steps _ _ _ L P). lia. Qed.

Lemma gap_kept steps sizes weights t es a b :
  weighed steps sizes weights -> well_formed sizes t ->
  Forall (valid sizes (length t)) es -> a <> b ->
  let before := scores steps (length sizes) weights t in
  let after := scores steps (length sizes) weights (edited_all es t) in
  entry before a - entry before b - Z.of_nat (length es) * moves steps weights sizes
  <= entry after a - entry after b.
Proof.
  intros G W F ab. pose proof (records_move_a_gap steps sizes weights t es a b G W F ab).
  cbv zeta in *. lia.
Qed.

(** The certificate: as many records as the radius says, inserted or removed in
    any mixture, do not change the prediction. *)
Theorem certificate steps sizes weights t es :
  weighed steps sizes weights -> well_formed sizes t -> t <> [] ->
  Forall (valid sizes (length t)) es ->
  let before := scores steps (length sizes) weights t in
  match radius (moves steps weights sizes) before with
  | Some r => Z.of_nat (length es) <= r
  | None => True
  end ->
  winner (scores steps (length sizes) weights (edited_all es t)) = winner before.
Proof.
  intros G W T F before R. set (after := scores _ _ _ (edited_all es t)).
  assert (Lb : length before = length t) by apply map_length.
  assert (La : length after = length t)
    by (unfold after, scores; rewrite map_length; apply edited_all_length).
  assert (Nb : before <> []) by (destruct t; easy).
  assert (Na : after <> []) by (intros ->; destruct t; easy).
  assert (M : es = [] \/ 0 <= moves steps weights sizes).
  { destruct F as [|e es' V _]; [auto|right]. destruct G as [L _].
    destruct e; destruct V as [_ P]; eapply moves_nonneg; eauto. }
  destruct M as [Z0|M]; [unfold after; rewrite Z0; reflexivity|].
  pose proof (winner_wins before Nb) as [A HA]. set (a := winner before) in *.
  apply (wins_unique after); [apply winner_wins; auto|].
  split; [lia|]. intros b B. destruct (Nat.eq_dec b a) as [->|N]; [lia|].
  pose proof (gap_kept steps sizes weights t es a b G W F ltac:(auto)) as K.
  cbv zeta in K. fold before after in K.
  destruct (radius _ before) as [r|] eqn:Er.
  - pose proof (radius_reach _ _ _ b Er ltac:(lia) N) as Hr. fold a in Hr. unfold reach in Hr.
    destruct (Z.eq_dec (moves steps weights sizes) 0) as [Z0|].
    { unfold radius in Er. rewrite Z0 in Er. easy. }
    replace (Z.max (moves steps weights sizes) 1) with (moves steps weights sizes) in Hr by lia.
    set (m := moves steps weights sizes) in *.
    set (g := entry before a - entry before b) in *.
    assert (Hm : Z.of_nat (length es) * m <= g - (if (b <? a)%nat then 1 else 0)).
    { pose proof (Z.mul_div_le (g - (if (b <? a)%nat then 1 else 0)) m ltac:(lia)). nia. }
    destruct (Nat.ltb_spec b a); lia.
  - pose proof (radius_none _ _ b Er ltac:(lia) N) as Z0. rewrite Z0 in K.
    destruct (HA b ltac:(lia)). lia.
Qed.

(** In the words of the certificate: a gap of g records, which is 2 steps tables
    g in the unit of scores, withstands fewer than 2g records. *)
Theorem fewer_than_twice_the_gap steps sizes weights t es a :
  0 <= steps -> weighed steps sizes weights -> well_formed sizes t ->
  Forall (valid sizes (length t)) es ->
  let before := scores steps (length sizes) weights t in
  (a < length t)%nat ->
  (forall b, (b < length t)%nat -> b <> a ->
     Z.of_nat (length es) * (steps * Z.of_nat (length sizes)) < entry before a - entry before b) ->
  winner before = a /\ winner (scores steps (length sizes) weights (edited_all es t)) = a.
Proof.
  intros S G W F before A H.
  assert (Lb : length before = length t) by apply map_length.
  pose proof (half_a_record _ _ _ S G) as half.
  assert (P : forall b, (b < length t)%nat -> b <> a -> entry before b < entry before a).
  { intros b B N. specialize (H b B N).
    assert (0 <= Z.of_nat (length es) * (steps * Z.of_nat (length sizes))) by nia. lia. }
  split.
  - apply (wins_unique before); [apply winner_wins; intros E; rewrite E in Lb; simpl in Lb; lia|].
    split; [lia|]. intros b B. destruct (Nat.eq_dec b a) as [->|N]; [lia|].
    specialize (P b ltac:(lia) N). lia.
  - set (after := scores _ _ _ (edited_all es t)).
    assert (La : length after = length t)
      by (unfold after, scores; rewrite map_length; apply edited_all_length).
    apply (wins_unique after); [apply winner_wins; intros E; rewrite E in La; simpl in La; lia|].
    split; [lia|]. intros b B. destruct (Nat.eq_dec b a) as [->|N]; [lia|].
    pose proof (gap_kept steps sizes weights t es a b G W F ltac:(auto)) as K.
    cbv zeta in K. fold before after in K. specialize (H b ltac:(lia) N). nia.
Qed.

(** ** The certificate of what is released *)

Lemma bump_commutes row p q d e : bump (bump row p d) q e = bump (bump row q e) p d.
Proof.
  revert p q; induction row as [|n row IH]; intros [|p] [|q]; simpl; auto.
  - f_equal. lia.
  - f_equal. apply IH.
Qed.

Lemma bump_of_bumps row ps q d e :
  bump (fold_right (fun p r => bump r p d) row ps) q e
  = fold_right (fun p r => bump r p d) (bump row q e) ps.
Proof. induction ps as [|p ps IH]; simpl; auto. rewrite bump_commutes, IH. reflexivity. Qed.

Lemma bumps_commute row ps qs d e :
  fold_right (fun q r => bump r q e) (fold_right (fun p r => bump r p d) row ps) qs
  = fold_right (fun p r => bump r p d) (fold_right (fun q r => bump r q e) row qs) ps.
Proof. induction qs as [|q qs IH]; simpl; auto. rewrite IH, bump_of_bumps. reflexivity. Qed.

Lemma change_commutes t c c' ps qs d e :
  change (change t c ps d) c' qs e = change (change t c' qs e) c ps d.
Proof.
  revert c c'; induction t as [|[row total] t IH]; intros [|c] [|c']; simpl; auto.
  - rewrite bumps_commute. f_equal. f_equal. lia.
  - f_equal. apply IH.
Qed.

Lemma edited_commutes e f t : edited e (edited f t) = edited f (edited e t).
Proof. destruct e, f; apply change_commutes. Qed.

Lemma edited_all_permutation es fs t : Permutation es fs -> edited_all es t = edited_all fs t.
Proof.
  unfold edited_all. induction 1; simpl; auto; [congruence|apply edited_commutes|congruence].
Qed.

Lemma bump_undone row p d : bump (bump row p d) p (- d) = row.
Proof.
  revert p; induction row as [|n row IH]; intros [|p]; simpl; auto; f_equal; auto. lia.
Qed.

Lemma bumps_undone row ps d :
  fold_right (fun p r => bump r p (- d)) (fold_right (fun p r => bump r p d) row ps) ps = row.
Proof.
  induction ps as [|p ps IH]; simpl; auto. rewrite <- bump_of_bumps, IH. apply bump_undone.
Qed.

Lemma removed_again r t : edited (Remove r) (edited (Insert r) t) = t.
Proof.
  simpl. generalize (class r). induction t as [|[row total] t IH]; intros [|c]; simpl; auto.
  - pose proof (bumps_undone row (places r) 1) as U. change (- (1)) with (-1) in U. rewrite U. f_equal. f_equal. lia.
  - rewrite IH. reflexivity.
Qed.

Lemma inserted_again r t : edited (Insert r) (edited (Remove r) t) = t.
Proof. rewrite edited_commutes. apply removed_again. Qed.

(** The exact counts of two data sets that have the records [kept] in common. *)
Theorem counted_of_others data data' gone fresh kept zeros :
  Permutation data (gone ++ kept) -> Permutation data' (fresh ++ kept) ->
  counted data' zeros = edited_all (map Insert fresh ++ map Remove gone) (counted data zeros).
Proof.
  intros P P'. unfold counted.
  rewrite (edited_all_permutation _ _ zeros (Permutation_map Insert P)).
  rewrite (edited_all_permutation _ _ zeros (Permutation_map Insert P')).
  rewrite !map_app. unfold edited_all. rewrite !fold_right_app. f_equal. clear P P'.
  set (t := fold_right edited zeros (map Insert kept)).
  induction gone as [|r gone IH]; simpl map; cbn [fold_right]; auto.
  rewrite IH at 1. clear IH.
  set (s := fold_right edited t (map Insert gone)).
  assert (C : forall u, fold_right edited (edited (Insert r) u) (map Remove gone)
                        = edited (Insert r) (fold_right edited u (map Remove gone))).
  { intros u. induction (map Remove gone) as [|f fs IH]; cbn [fold_right]; auto.
    rewrite IH. apply edited_commutes. }
  rewrite C, removed_again. reflexivity.
Qed.

Lemma bump_added row noise p d : bump (added row noise) p d = added (bump row p d) noise.
Proof.
  revert noise p; induction row as [|n row IH]; intros [|e noise] [|p]; simpl; auto; f_equal; auto; lia.
Qed.

Lemma bumps_added row noise ps d :
  fold_right (fun p r => bump r p d) (added row noise) ps
  = added (fold_right (fun p r => bump r p d) row ps) noise.
Proof. induction ps as [|p ps IH]; simpl; auto. rewrite IH. apply bump_added. Qed.

Lemma change_noisy t noise c ps d : change (noisy t noise) c ps d = noisy (change t c ps d) noise.
Proof.
  revert noise c; induction t as [|[row total] t IH]; intros [|[e x] noise] [|c]; simpl; auto.
  - rewrite bumps_added. f_equal. f_equal. lia.
  - rewrite IH. reflexivity.
Qed.

Lemma edited_noisy es t noise : edited_all es (noisy t noise) = noisy (edited_all es t) noise.
Proof.
  induction es as [|e es IH]; simpl; auto. rewrite IH. destruct e; apply change_noisy.
Qed.

(** Two data sets, released with the same noise: as many records as the radius of the
    one says, removed and inserted, do not change the prediction. *)
Theorem released_certificate steps sizes weights zeros data data' gone fresh kept noise :
  let released := noisy (counted data zeros) noise in
  let before := scores steps (length sizes) weights released in
  weighed steps sizes weights -> well_formed sizes released -> released <> [] ->
  Permutation data (gone ++ kept) -> Permutation data' (fresh ++ kept) ->
  Forall (fun r => (class r < length released)%nat /\ placed 0 sizes (places r)) (gone ++ fresh) ->
  match radius (moves steps weights sizes) before with
  | Some r => Z.of_nat (length gone + length fresh) <= r
  | None => True
  end ->
  winner (scores steps (length sizes) weights (noisy (counted data' zeros) noise)) = winner before.
Proof.
  intros released before G W T P P' F R.
  rewrite (counted_of_others data data' gone fresh kept zeros P P'), <- edited_noisy.
  apply Forall_app in F. destruct F as [Fg Ff]. apply certificate; auto.
  - apply Forall_app. split; apply Forall_map; [exact Ff|exact Fg].
  - fold released before. destruct (radius _ before); auto.
    rewrite app_length, !map_length. lia.
Qed.

(** ** Sanity: the hypotheses can be met, the radius is sharp *)

(** Two classes, one table of two cells, a gap of 3 and a half: radius 7. *)
Definition example : table := [([5; 0], 5); ([0; 2], 2)].

Example example_weighed : weighed 4 [2%nat] [4; 0].
Proof. split; [reflexivity|]. repeat constructor; lia. Qed.

Example example_scores : scores 4 1 [4; 0] example = [20; -8].
Proof. reflexivity. Qed.

Example example_radius : radius (moves 4 [4; 0] [2%nat]) (scores 4 1 [4; 0] example) = Some 7.
Proof. reflexivity. Qed.

(** They are the counts of seven records. *)
Example example_counted : counted
  (repeat {| class := 0; places := [0%nat] |} 5 ++ repeat {| class := 1; places := [1%nat] |} 2)
  [([0; 0], 0); ([0; 0], 0)] = example.
Proof. reflexivity. Qed.

(** One record more than the radius says is too many. *)
Example radius_is_sharp : exists es,
  Forall (valid [2%nat] 2) es /\ length es = 8%nat /\
  winner (scores 4 1 [4; 0] (edited_all es example)) <> winner (scores 4 1 [4; 0] example).
Proof.
  exists (repeat (Insert {| class := 1; places := [0%nat] |}) 8). split; [|split].
  - apply Forall_forall. intros e I. apply repeat_spec in I. subst. simpl. repeat split; lia.
  - reflexivity.
  - vm_compute. discriminate.
Qed.
