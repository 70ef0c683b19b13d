(** Propose-Test-Release on finite distributions.

    A test adds noise to a margin and passes where the noisy margin is in a
    public set. If it passes, the robust value is released with little noise;
    if not, the fallback with more noise. Two cases cover all neighbours: either
    one record can move the robust value by more than the proposal, then both
    margins are 0 and the test passes by accident alone; or it cannot, then both
    kinds of noise suffice, and the margins differ by at most one. *)

From Coq Require Import Reals ZArith List Lra Lia Bool.
From Prudent Require Import Finite.
Import ListNotations.
Open Scope R_scope.

Section PTR.

(** *** The mechanism *)

Variable Data : Type.
Variable Answer : Type.      (* what is released besides the test *)
Variable outputs : list Answer.
Variable Noisy : Type.       (* noisy margins *)
Variable noisy : list Noisy.

Variable margin : Data -> Z.
Variable test : Z -> Noisy -> R.             (* the law of the noisy margin *)
Variable passes : Noisy -> bool.
Variable robust : Data -> Answer -> R.       (* the law of the robust value and its noise *)
Variable fallback : Data -> Answer -> R.

Hypothesis test_law : forall d, distribution noisy (test d).
Hypothesis robust_law : forall S, distribution outputs (robust S).
Hypothesis fallback_law : forall S, distribution outputs (fallback S).

Definition branch (S : Data) (b : bool) : Answer -> R := if b then robust S else fallback S.

(** The noisy margin is released. *)
Definition releasing_margin (S : Data) : Noisy * Answer -> R :=
  joint (test (margin S)) (fun s => branch S (passes s)).

(** Only the branch is released: what was released before, with s replaced by
    whether it passes. *)

Definition releasing_branch (S : Data) (by' : bool * Answer) : R :=
  sum noisy (fun s => if Bool.eqb (passes s) (fst by') then releasing_margin S (s, snd by') else 0).

(** The probability of a branch. *)
Definition chance (d : Z) (b : bool) : R :=
  sum noisy (fun s => if Bool.eqb (passes s) b then test d s else 0).

Definition branches : list bool := [true; false].

(** *** What its guarantee rests on *)

(** Data sets with and without a record, in one direction. *)
Variable neighbours : Data -> Data -> Prop.

(** One record moves the robust value by at most the proposal. *)
Variable near : Data -> Data -> Prop.

(** A safe margin. *)
Hypothesis margin_nonneg : forall S, (0 <= margin S)%Z.
Hypothesis margin_close : forall S T, neighbours S T -> (Z.abs (margin S - margin T) <= 1)%Z.
Hypothesis margin_safe : forall S T, neighbours S T ->
  (0 < margin S \/ 0 < margin T)%Z -> near S T.

(** Pairs of distributions on one finite set, that dominate the noise: of the
    fallback, of the robust value moved by the proposal, and moved by any change. *)
Variable Loss : Type.
Variable losses : list Loss.
Variables f f' g g' h h' : Loss -> R.

Hypothesis fallback_dominated : forall S T, neighbours S T ->
  dominated outputs (fallback S) (fallback T) losses f f'.
Hypothesis robust_dominated : forall S T, neighbours S T -> near S T ->
  dominated outputs (robust S) (robust T) losses g g'.
Hypothesis robust_dominated_anyway : forall S T, neighbours S T ->
  dominated outputs (robust S) (robust T) losses h h'.

(** *** Sanity: they are distributions *)

Lemma branch_law S b : distribution outputs (branch S b).
Proof. destruct b; simpl; auto. Qed.

Theorem releasing_margin_distribution S :
  distribution (list_prod noisy outputs) (releasing_margin S).
Proof. apply joint_distribution; auto. intros. apply branch_law. Qed.

Lemma releasing_branch_product S b y : releasing_branch S (b, y) = chance (margin S) b * branch S b y.
Proof.
  unfold releasing_branch, chance. rewrite <- sum_scale_right. apply sum_ext. intros s _. simpl.
  unfold releasing_margin, joint. simpl. destruct (Bool.eqb (passes s) b) eqn:E; [|ring].
  apply eqb_prop in E. rewrite E. reflexivity.
Qed.

Lemma chance_distribution d : distribution branches (chance d).
Proof.
  destruct (test_law d) as [N S]. split.
  - intros b _. apply sum_nonneg. intros s I. destruct (Bool.eqb _ _); [auto|lra].
  - unfold branches, chance. simpl. rewrite Rplus_0_r, <- sum_plus. rewrite <- S.
    apply sum_ext. intros s _. destruct (passes s); simpl; ring.
Qed.

Theorem releasing_branch_distribution S :
  distribution (list_prod branches outputs) (releasing_branch S).
Proof.
  destruct (joint_distribution branches outputs (chance (margin S)) (branch S)
              (chance_distribution _) (fun b _ => branch_law S b)) as [N M].
  split.
  - intros [b y] I. rewrite releasing_branch_product. apply (N _ I).
  - rewrite <- M. apply sum_ext. intros [b y] _. apply releasing_branch_product.
Qed.

(** *** The pairs *)

(** Case 1: a label that tells of an accident, as often on both data sets. *)
Definition accident (b : bool) : R := chance 0 b.
Definition case_one (bz : bool * Loss) : R := accident (fst bz) * (if fst bz then h else f) (snd bz).
Definition case_one' (bz : bool * Loss) : R := accident (fst bz) * (if fst bz then h' else f') (snd bz).

(** Case 2 where only the branch is released, for margins d and d'. *)
Definition branch_pair (d : Z) (bz : bool * Loss) : R :=
  chance d (fst bz) * (if fst bz then g else f) (snd bz).
Definition branch_pair' (d : Z) (bz : bool * Loss) : R :=
  chance d (fst bz) * (if fst bz then g' else f') (snd bz).

Definition labelled := list_prod branches losses.

(** A labelled mixture has the mixed profile. *)
Lemma labelled_profile (m : bool -> R) (u u' v v' : Loss -> R) a :
  0 <= m true -> 0 <= m false ->
  hockey labelled (fun bz => m (fst bz) * (if fst bz then u else v) (snd bz))
                  (fun bz => m (fst bz) * (if fst bz then u' else v') (snd bz)) a
  = m true * hockey losses u u' a + m false * hockey losses v v' a.
Proof.
  intros T F. unfold hockey, labelled. rewrite sum_product. unfold branches. simpl.
  rewrite Rplus_0_r, <- !sum_scale. f_equal; apply sum_ext; intros z _;
    rewrite <- positive_part_scale by auto; f_equal; ring.
Qed.

Lemma case_one_profile a :
  hockey labelled case_one case_one' a
  = chance 0 true * hockey losses h h' a + chance 0 false * hockey losses f f' a.
Proof.
  destruct (chance_distribution 0) as [N _].
  apply labelled_profile; apply N; simpl; auto.
Qed.

(** *** Case 1 *)

Lemma case_one_margin S T a :
  neighbours S T -> margin S = 0%Z -> margin T = 0%Z -> 0 <= a ->
  hockey (list_prod noisy outputs) (releasing_margin S) (releasing_margin T) a
  <= hockey labelled case_one case_one' a.
Proof.
  intros N ZS ZT Ha. rewrite case_one_profile.
  unfold hockey at 1. rewrite sum_product. unfold releasing_margin, joint. simpl.
  rewrite ZS, ZT. destruct (test_law 0) as [NT _].
  apply Rle_trans with (sum noisy (fun s => test 0 s *
    (if passes s then hockey losses h h' a else hockey losses f f' a))).
  - apply sum_le. intros s I.
    rewrite (sum_ext outputs _ (fun y => test 0 s *
      positive_part (branch S (passes s) y - a * branch T (passes s) y)))
      by (intros y _; rewrite <- positive_part_scale by auto; f_equal; ring).
    rewrite sum_scale. apply Rmult_le_compat_l; [auto|].
    destruct (passes s); simpl;
      [apply (robust_dominated_anyway S T N a Ha)|apply (fallback_dominated S T N a Ha)].
  - right. unfold chance. rewrite <- !sum_scale_right, <- sum_plus. apply sum_ext.
    intros s _. destruct (passes s); simpl; ring.
Qed.

(** *** From the margin to the branch: one more label is post-processing *)

Lemma branch_is_post_processing S T a :
  0 <= a ->
  hockey (list_prod branches outputs) (releasing_branch S) (releasing_branch T) a
  <= hockey (list_prod noisy outputs) (releasing_margin S) (releasing_margin T) a.
Proof.
  intros Ha. unfold hockey. rewrite !sum_product. unfold branches. simpl.
  rewrite Rplus_0_r, <- sum_plus, (sum_swap noisy outputs). apply sum_le. intros y _.
  unfold releasing_branch. simpl.
  assert (E : forall b,
    positive_part (sum noisy (fun s => if Bool.eqb (passes s) b then releasing_margin S (s, y) else 0)
      - a * sum noisy (fun s => if Bool.eqb (passes s) b then releasing_margin T (s, y) else 0))
    <= sum noisy (fun s => if Bool.eqb (passes s) b
         then positive_part (releasing_margin S (s, y) - a * releasing_margin T (s, y)) else 0)).
  { intros b. rewrite <- sum_scale.
    replace (sum noisy (fun s => if Bool.eqb (passes s) b then releasing_margin S (s, y) else 0)
       - sum noisy (fun s => a * (if Bool.eqb (passes s) b then releasing_margin T (s, y) else 0)))
      with (sum noisy (fun s => if Bool.eqb (passes s) b
              then releasing_margin S (s, y) - a * releasing_margin T (s, y) else 0)).
    - eapply Rle_trans; [apply sum_positive_part|]. right. apply sum_ext. intros s _.
      destruct (Bool.eqb _ _); auto. apply positive_part_of_nonneg. lra.
    - clear. induction noisy as [|s l IH]; simpl; [ring|]. destruct (Bool.eqb _ _); lra. }
  eapply Rle_trans; [apply Rplus_le_compat; apply E|]. rewrite <- sum_plus. right.
  apply sum_ext. intros s _. destruct (passes s); simpl; ring.
Qed.

(** *** Theorem, the noisy margin is released *)

Section Margin.

(** One pair (u, u') dominates the test of margins that differ by at most one,
    and one (k, k') both kinds of noise. *)
Variable Label : Type.
Variable labels : list Label.
Variables u u' : Label -> R.
Hypothesis test_dominated : forall d d', (Z.abs (d - d') <= 1)%Z ->
  dominated noisy (test d) (test d') labels u u'.

Variables k k' : Loss -> R.
Hypothesis k_nonneg : nonnegative losses k.
Hypothesis k_nonneg' : nonnegative losses k'.
Hypothesis f_below_k : dominated losses f f' losses k k'.
Hypothesis g_below_k : dominated losses g g' losses k k'.

Lemma case_two_margin S T a :
  neighbours S T -> near S T -> 0 <= a ->
  hockey (list_prod noisy outputs) (releasing_margin S) (releasing_margin T) a
  <= hockey (list_prod labels losses) (product u k) (product u' k') a.
Proof.
  intros N Hn Ha.
  apply (composition noisy (test (margin S)) (test (margin T)) labels u u'
           outputs (fun s => branch S (passes s)) (fun s => branch T (passes s)) losses k k');
    auto; try apply test_law.
  - intros s _. apply branch_law.
  - intros s _. destruct (passes s); simpl.
    + eapply dominated_trans; [apply robust_dominated; auto|auto].
    + eapply dominated_trans; [apply fallback_dominated; auto|auto].
Qed.

Theorem ptr_releasing_the_margin S T epsilon :
  neighbours S T ->
  hockey (list_prod noisy outputs) (releasing_margin S) (releasing_margin T) (exp epsilon)
  <= Rmax (hockey labelled case_one case_one' (exp epsilon))
          (hockey (list_prod labels losses) (product u k) (product u' k') (exp epsilon)).
Proof.
  intros N. assert (Ha : 0 <= exp epsilon) by (left; apply exp_pos).
  destruct (Z.eq_dec (margin S) 0) as [ZS|]; [destruct (Z.eq_dec (margin T) 0) as [ZT|]|].
  - eapply Rle_trans; [apply (case_one_margin S T _ N ZS ZT Ha)|apply Rmax_l].
  - eapply Rle_trans; [|apply Rmax_r]. apply case_two_margin; auto.
    apply margin_safe; auto. pose proof (margin_nonneg T). lia.
  - eapply Rle_trans; [|apply Rmax_r]. apply case_two_margin; auto.
    apply margin_safe; auto. pose proof (margin_nonneg S). lia.
Qed.

End Margin.

(** *** Theorem, only the branch is released *)

Lemma case_two_branch S T a :
  neighbours S T -> near S T -> 0 <= a ->
  hockey (list_prod branches outputs) (releasing_branch S) (releasing_branch T) a
  <= hockey labelled (branch_pair (margin S)) (branch_pair' (margin T)) a.
Proof.
  intros N Hn Ha. unfold hockey, labelled. rewrite !sum_product. apply sum_le. intros b _.
  destruct (chance_distribution (margin S)) as [NS _].
  destruct (chance_distribution (margin T)) as [NT _].
  assert (I : In b branches) by (destruct b; simpl; auto).
  unfold branch_pair, branch_pair'. simpl.
  assert (D : dominated outputs (branch S b) (branch T b)
                losses (if b then g else f) (if b then g' else f'))
    by (destruct b; simpl; auto).
  pose proof (dominated_scaled _ _ _ _ _ _ (chance (margin S) b) (a * chance (margin T) b) D
    (proj1 (branch_law T b)) (NS b I) ltac:(apply Rmult_le_pos; auto)) as H.
  eapply Rle_trans; [right|eapply Rle_trans; [exact H|right]];
    apply sum_ext; intros y _; rewrite ?releasing_branch_product; f_equal; ring.
Qed.

Theorem ptr_releasing_the_branch S T epsilon :
  neighbours S T -> exists d d', (0 <= d)%Z /\ (0 <= d')%Z /\ (Z.abs (d - d') <= 1)%Z /\
  hockey (list_prod branches outputs) (releasing_branch S) (releasing_branch T) (exp epsilon)
  <= Rmax (hockey labelled case_one case_one' (exp epsilon))
          (hockey labelled (branch_pair d) (branch_pair' d') (exp epsilon)).
Proof.
  intros N. assert (Ha : 0 <= exp epsilon) by (left; apply exp_pos).
  exists (margin S), (margin T). repeat split; auto.
  destruct (Z.eq_dec (margin S) 0) as [ZS|]; [destruct (Z.eq_dec (margin T) 0) as [ZT|]|].
  - eapply Rle_trans; [|apply Rmax_l].
    eapply Rle_trans; [apply branch_is_post_processing; auto|].
    apply (case_one_margin S T _ N ZS ZT Ha).
  - eapply Rle_trans; [|apply Rmax_r]. apply case_two_branch; auto.
    apply margin_safe; auto. pose proof (margin_nonneg T). lia.
  - eapply Rle_trans; [|apply Rmax_r]. apply case_two_branch; auto.
    apply margin_safe; auto. pose proof (margin_nonneg S). lia.
Qed.

(** *** Theorem, only the branch, of a margin that a record can only lower *)

(** Equal margins cost no more than the worse of the two kinds of noise. *)
Lemma equal_margins d a :
  0 <= a ->
  hockey labelled (branch_pair d) (branch_pair' d) a
  <= Rmax (hockey losses f f' a) (hockey losses g g' a).
Proof.
  intros Ha. destruct (chance_distribution d) as [N S].
  pose proof (N true ltac:(simpl; auto)). pose proof (N false ltac:(simpl; auto)).
  unfold branches, sum in S. simpl in S.
  unfold branch_pair, branch_pair'. rewrite labelled_profile by auto.
  pose proof (Rmax_l (hockey losses f f' a) (hockey losses g g' a)).
  pose proof (Rmax_r (hockey losses f f' a) (hockey losses g g' a)).
  set (m := Rmax _ _) in *. replace m with (chance d true * m + chance d false * m); [|nra].
  apply Rplus_le_compat; apply Rmult_le_compat_l; auto.
Qed.

(** Where both kinds of noise have one pair, every branch pair costs at least as
    much as the noise alone: whoever sees the branch can ignore it. *)
Theorem ignoring_the_branch d d' a :
  (forall z, In z losses -> g z = f z /\ g' z = f' z) ->
  hockey losses f f' a <= hockey labelled (branch_pair d) (branch_pair' d') a.
Proof.
  intros E. destruct (chance_distribution d) as [_ S], (chance_distribution d') as [_ S'].
  unfold branches, sum in S, S'. simpl in S, S'.
  unfold hockey, labelled. rewrite sum_product. unfold branches. simpl.
  rewrite Rplus_0_r, <- sum_plus. apply sum_le. intros z Z.
  unfold branch_pair, branch_pair'. simpl. destruct (E z Z) as [-> ->].
  eapply Rle_trans; [|apply positive_part_plus]. right. f_equal.
  replace (f z) with ((chance d true + (chance d false + 0)) * f z) at 1 by (rewrite S; ring).
  replace (f' z) with ((chance d' true + (chance d' false + 0)) * f' z) at 1 by (rewrite S'; ring).
  ring.
Qed.

(** S has the record, T does not. (For the other direction, exchange the pairs:
    see [monotone_removed].) *)
Theorem ptr_releasing_a_monotone_branch S T epsilon :
  neighbours S T -> (margin S <= margin T)%Z ->
  let delta := hockey (list_prod branches outputs) (releasing_branch S) (releasing_branch T)
                 (exp epsilon) in
  let accidents := hockey labelled case_one case_one' (exp epsilon) in
  delta <= Rmax accidents (Rmax (hockey losses f f' (exp epsilon)) (hockey losses g g' (exp epsilon)))
  \/ exists d, (1 <= d)%Z /\
     delta <= Rmax accidents (hockey labelled (branch_pair (d - 1)) (branch_pair' d) (exp epsilon)).
Proof.
  intros N M delta accidents. assert (Ha : 0 <= exp epsilon) by (left; apply exp_pos).
  pose proof (margin_close S T N). pose proof (margin_nonneg S).
  destruct (Z.eq_dec (margin T) 0) as [ZT|].
  { left. eapply Rle_trans; [|apply Rmax_l].
    eapply Rle_trans; [apply branch_is_post_processing; auto|].
    apply (case_one_margin S T _ N); auto. lia. }
  assert (Hn : near S T) by (apply margin_safe; auto; lia).
  pose proof (case_two_branch S T _ N Hn Ha) as C.
  destruct (Z.eq_dec (margin S) (margin T)) as [E|].
  - left. rewrite E in C. eapply Rle_trans; [exact C|]. eapply Rle_trans; [|apply Rmax_r].
    apply equal_margins; auto.
  - right. exists (margin T). split; [lia|]. eapply Rle_trans; [|apply Rmax_r].
    replace (margin T - 1)%Z with (margin S) by lia. exact C.
Qed.

Theorem monotone_removed S T epsilon :
  neighbours S T -> (margin T <= margin S)%Z ->
  let delta := hockey (list_prod branches outputs) (releasing_branch S) (releasing_branch T)
                 (exp epsilon) in
  let accidents := hockey labelled case_one case_one' (exp epsilon) in
  delta <= Rmax accidents (Rmax (hockey losses f f' (exp epsilon)) (hockey losses g g' (exp epsilon)))
  \/ exists d, (1 <= d)%Z /\
     delta <= Rmax accidents (hockey labelled (branch_pair d) (branch_pair' (d - 1)) (exp epsilon)).
Proof.
  intros N M delta accidents. assert (Ha : 0 <= exp epsilon) by (left; apply exp_pos).
  pose proof (margin_close S T N). pose proof (margin_nonneg T).
  destruct (Z.eq_dec (margin S) 0) as [ZS|].
  { left. eapply Rle_trans; [|apply Rmax_l].
    eapply Rle_trans; [apply branch_is_post_processing; auto|].
    apply (case_one_margin S T _ N); auto. lia. }
  assert (Hn : near S T) by (apply margin_safe; auto; lia).
  pose proof (case_two_branch S T _ N Hn Ha) as C.
  destruct (Z.eq_dec (margin S) (margin T)) as [E|].
  - left. rewrite E in C. eapply Rle_trans; [exact C|]. eapply Rle_trans; [|apply Rmax_r].
    apply equal_margins; auto.
  - right. exists (margin S). split; [lia|]. eapply Rle_trans; [|apply Rmax_r].
    replace (margin S - 1)%Z with (margin T) by lia. exact C.
Qed.

(** *** Thinning: which margins tell *)

(** Margins at which passing is thinned by one factor: their pair is a mixture of
    the one pair and the fallback. *)
Theorem thinned_passes d e d' e' theta a :
  0 <= theta <= 1 -> 0 <= a ->
  chance d true = theta * chance e true -> chance d' true = theta * chance e' true ->
  hockey labelled (branch_pair d) (branch_pair' d') a
  <= Rmax (hockey labelled (branch_pair e) (branch_pair' e') a) (hockey losses f f' a).
Proof.
  intros Ht Ha E E'. destruct (chance_distribution d) as [_ S], (chance_distribution d') as [_ S'].
  destruct (chance_distribution e) as [_ Se], (chance_distribution e') as [_ Se'].
  unfold branches, sum in S, S', Se, Se'. simpl in S, S', Se, Se'.
  assert (F : chance d false = theta * chance e false + (1 - theta)) by nra.
  assert (F' : chance d' false = theta * chance e' false + (1 - theta)) by nra.
  apply Rle_trans with (theta * hockey labelled (branch_pair e) (branch_pair' e') a
                        + (1 - theta) * hockey losses f f' a).
  - unfold hockey, labelled. rewrite !sum_product. unfold branches, branch_pair, branch_pair'. simpl.
    rewrite E, E', F, F', !Rplus_0_r, Rmult_plus_distr_l, <- !sum_scale, Rplus_assoc.
    apply Rplus_le_compat.
    + apply sum_le. intros z _. rewrite <- positive_part_scale by lra. right. f_equal. ring.
    + rewrite <- sum_plus. apply sum_le. intros z _.
      rewrite <- !positive_part_scale by lra. eapply Rle_trans; [|apply positive_part_plus].
      right. f_equal. ring.
  - pose proof (Rmax_l (hockey labelled (branch_pair e) (branch_pair' e') a) (hockey losses f f' a)).
    pose proof (Rmax_r (hockey labelled (branch_pair e) (branch_pair' e') a) (hockey losses f f' a)).
    set (m := Rmax _ _) in *. nra.
Qed.

(** The same where failing is thinned. *)
Theorem thinned_failures d e d' e' theta a :
  0 <= theta <= 1 -> 0 <= a ->
  chance d false = theta * chance e false -> chance d' false = theta * chance e' false ->
  hockey labelled (branch_pair d) (branch_pair' d') a
  <= Rmax (hockey labelled (branch_pair e) (branch_pair' e') a) (hockey losses g g' a).
Proof.
  intros Ht Ha E E'. destruct (chance_distribution d) as [_ S], (chance_distribution d') as [_ S'].
  destruct (chance_distribution e) as [_ Se], (chance_distribution e') as [_ Se'].
  unfold branches, sum in S, S', Se, Se'. simpl in S, S', Se, Se'.
  assert (F : chance d true = theta * chance e true + (1 - theta)) by nra.
  assert (F' : chance d' true = theta * chance e' true + (1 - theta)) by nra.
  apply Rle_trans with (theta * hockey labelled (branch_pair e) (branch_pair' e') a
                        + (1 - theta) * hockey losses g g' a).
  - unfold hockey, labelled. rewrite !sum_product. unfold branches, branch_pair, branch_pair'. simpl.
    rewrite E, E', F, F', !Rplus_0_r, Rmult_plus_distr_l, <- !sum_scale.
    assert (H : sum losses (fun z => positive_part
        ((theta * chance e true + (1 - theta)) * g z
         - a * ((theta * chance e' true + (1 - theta)) * g' z)))
      <= sum losses (fun z => theta * positive_part (chance e true * g z - a * (chance e' true * g' z)))
         + sum losses (fun z => (1 - theta) * positive_part (g z - a * g' z))).
    { rewrite <- sum_plus. apply sum_le. intros z _.
      rewrite <- !positive_part_scale by lra. eapply Rle_trans; [|apply positive_part_plus].
      right. f_equal. ring. }
    assert (G : sum losses (fun z => positive_part
        (theta * chance e false * f z - a * (theta * chance e' false * f' z)))
      = sum losses (fun z => theta * positive_part (chance e false * f z - a * (chance e' false * f' z)))).
    { apply sum_ext. intros z _. rewrite <- positive_part_scale by lra. f_equal. ring. }
    rewrite G. lra.
  - pose proof (Rmax_l (hockey labelled (branch_pair e) (branch_pair' e') a) (hockey losses g g' a)).
    pose proof (Rmax_r (hockey labelled (branch_pair e) (branch_pair' e') a) (hockey losses g g' a)).
    set (m := Rmax _ _) in *. nra.
Qed.

End PTR.
