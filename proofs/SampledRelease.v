(** Propose-Test-Release on Poisson-sampled batches: each of the pairs of its cases is
    sampled, and the worst of them bounds the sampled mechanism. *)

From Coq Require Import Reals ZArith List Lra Lia Bool Permutation.
From Prudent Require Import Finite Pure Sampling ProposeTestRelease Geometric.
From Prudent Require PrivateQuantile.
Import ListNotations.
Open Scope R_scope.

(** The largest of several profiles, at each a = e^epsilon. *)
Definition worst (h : R -> R) (hs : list (R -> R)) (a : R) : R :=
  fold_right (fun k m => Rmax (k a) m) (h a) hs.

Lemma worst_first h hs a : h a <= worst h hs a.
Proof.
  induction hs as [|k hs IH]; simpl; [lra|]. eapply Rle_trans; [exact IH|apply Rmax_r].
Qed.

Lemma worst_other h hs k a : In k hs -> k a <= worst h hs a.
Proof.
  induction hs as [|j hs IH]; [easy|]. intros [->|I]; simpl; [apply Rmax_l|].
  eapply Rle_trans; [apply IH, I|apply Rmax_r].
Qed.

(** Sampling the worst is the worst of what is sampled. *)
Lemma removing_worst q h hs a :
  0 < q -> removing q (worst h hs) a = worst (removing q h) (map (removing q) hs) a.
Proof.
  intros Q. induction hs as [|k hs IH]; [reflexivity|].
  simpl. fold (worst (removing q h) (map (removing q) hs) a). rewrite <- IH. clear IH.
  unfold removing. destruct (Rle_dec (1 - q) a).
  - simpl. fold (worst h hs ((a - 1 + q) / q)). symmetry. apply RmaxRmult. lra.
  - unfold Rmax. destruct (Rle_dec _ _); lra.
Qed.

Lemma adding_worst q h hs a :
  adding q (worst h hs) a = worst (adding q h) (map (adding q) hs) a.
Proof.
  induction hs as [|k hs IH]; [reflexivity|].
  simpl. fold (worst (adding q h) (map (adding q) hs) a). rewrite <- IH. clear IH.
  unfold adding. destruct (Rlt_dec 0 (1 - a * (1 - q))) as [P|P].
  - simpl. fold (worst h hs (a * q / (1 - a * (1 - q)))). symmetry. apply RmaxRmult. lra.
  - unfold Rmax. destruct (Rle_dec _ _); lra.
Qed.

(** A mechanism whose profile, with a record more or less, is at most that of its worst
    case: on sampled batches it is at most the worst of the sampled cases. *)
Section Cases.

Variables Record Answer : Type.
Variable outputs : list Answer.
Variable M : list Record -> Answer -> R.
Hypothesis M_law : forall batch, distribution outputs (M batch).
Variable q : R.
Hypothesis rate : 0 < q <= 1.
Variable h : R -> R.
Variable hs : list (R -> R).
Hypothesis at_zero : 1 <= h 0.
Variable x : Record.

Lemma at_every_a (S T : list Record) :
  (forall epsilon, hockey outputs (M S) (M T) (exp epsilon) <= worst h hs (exp epsilon)) ->
  forall a, 0 <= a -> hockey outputs (M S) (M T) a <= worst h hs a.
Proof.
  intros H a Ha. destruct (Req_dec a 0) as [->|].
  - rewrite hockey_at_zero by auto. eapply Rle_trans; [exact at_zero|apply worst_first].
  - rewrite <- (exp_ln a) by lra. apply H.
Qed.

Theorem sampled_cases_removing before after epsilon :
  (forall b c epsilon,
     hockey outputs (M (b ++ x :: c)) (M (b ++ c)) (exp epsilon) <= worst h hs (exp epsilon)) ->
  hockey outputs (sampled Record Answer M q (before ++ x :: after) [])
                 (sampled Record Answer M q (before ++ after) []) (exp epsilon)
  <= worst (removing q h) (map (removing q) hs) (exp epsilon).
Proof.
  intros H. rewrite <- removing_worst by lra. apply poisson_sampling_removing; auto.
  intros b c. apply at_every_a. auto.
Qed.

Theorem sampled_cases_adding before after epsilon :
  (forall b c epsilon,
     hockey outputs (M (b ++ c)) (M (b ++ x :: c)) (exp epsilon) <= worst h hs (exp epsilon)) ->
  hockey outputs (sampled Record Answer M q (before ++ after) [])
                 (sampled Record Answer M q (before ++ x :: after) []) (exp epsilon)
  <= worst (adding q h) (map (adding q) hs) (exp epsilon).
Proof.
  intros H. rewrite <- adding_worst. apply poisson_sampling_adding; auto.
  intros b c. apply at_every_a. auto.
Qed.

End Cases.

(** ** Many sampled steps *)

(** Steps on freshly sampled batches, each chosen in view of all earlier answers. If one
    pair (p, p') dominates each of them before sampling, as many draws of the sampled
    pair dominate all of them after it. *)
Section Many.

Variables Record Answer B : Type.
Variable outputs : list Answer.
Variable M : list Answer -> list Record -> Answer -> R.
Hypothesis M_law : forall history batch, distribution outputs (M history batch).
Variable q : R.
Hypothesis rate : 0 < q <= 1.
Variable k : list B.
Variables p p' : B -> R.
Hypothesis p_law : distribution k p.
Hypothesis p_law' : distribution k p'.
Variable x : Record.

Let step data history := sampled Record Answer (M history) q data [].

Theorem sampled_steps_removing before after n :
  (forall history b c,
     dominated outputs (M history (b ++ x :: c)) (M history (b ++ c)) k p p') ->
  dominated (tuples outputs n) (steps (step (before ++ x :: after)) [] n)
                               (steps (step (before ++ after)) [] n)
            (tuples k n) (draws (mixed q p' p) n) (draws p' n).
Proof.
  intros H. assert (Q : 0 <= q <= 1) by lra. apply composition_of_many.
  - intros history. apply sampled_distribution; auto.
  - intros history. apply sampled_distribution; auto.
  - apply mixed_distribution; auto.
  - auto.
  - intros history. apply dominated_by_epsilon.
    + apply sampled_distribution; auto.
    + apply mixed_distribution; auto.
    + intros epsilon. rewrite (sampled_removing k q p' p) by auto.
      apply poisson_sampling_removing; auto. intros b c a A. apply H. auto.
Qed.

Theorem sampled_steps_adding before after n :
  (forall history b c,
     dominated outputs (M history (b ++ c)) (M history (b ++ x :: c)) k p' p) ->
  dominated (tuples outputs n) (steps (step (before ++ after)) [] n)
                               (steps (step (before ++ x :: after)) [] n)
            (tuples k n) (draws p' n) (draws (mixed q p' p) n).
Proof.
  intros H. assert (Q : 0 <= q <= 1) by lra. apply composition_of_many.
  - intros history. apply sampled_distribution; auto.
  - intros history. apply sampled_distribution; auto.
  - auto.
  - apply mixed_distribution; auto.
  - intros history. apply dominated_by_epsilon; auto.
    + apply sampled_distribution; auto.
    + intros epsilon. assert (0 <= exp epsilon) by (left; apply exp_pos).
      rewrite (sampled_adding k q p' p); try apply p_law; try apply p_law'; auto.
      apply poisson_sampling_adding; auto. intros b c a A. apply H. auto.
Qed.

End Many.

(** ** Propose-Test-Release *)

Section SampledPTR.

Variables Record Answer Noisy Loss : Type.
Variable outputs : list Answer.
Variable noisy : list Noisy.
Variable margin : list Record -> Z.
Variable test : Z -> Noisy -> R.
Variable passes : Noisy -> bool.
Variables robust fallback : list Record -> Answer -> R.
Hypothesis test_law : forall d, distribution noisy (test d).
Hypothesis robust_law : forall S, distribution outputs (robust S).
Hypothesis fallback_law : forall S, distribution outputs (fallback S).

(** S has one record more than T, at any place. *)
Definition one_more (S T : list Record) : Prop := exists x b c, S = b ++ x :: c /\ T = b ++ c.

Variable near : list Record -> list Record -> Prop.
Hypothesis margin_nonneg : forall S, (0 <= margin S)%Z.
Hypothesis margin_close : forall S T, one_more S T -> (Z.abs (margin S - margin T) <= 1)%Z.
Hypothesis margin_safe : forall S T, one_more S T ->
  (0 < margin S \/ 0 < margin T)%Z -> near S T.

(** The pairs of the noise, with the record and without it. *)
Definition both {A B} (l : list A) (P Q : A -> R) (k : list B) (p q : B -> R) : Prop :=
  dominated l P Q k p q /\ dominated l Q P k q p.

Variable losses : list Loss.
Variables f f' g g' h h' : Loss -> R.
Hypothesis f_law : distribution losses f.
Hypothesis f_law' : distribution losses f'.
Hypothesis h_law : distribution losses h.
Hypothesis h_law' : distribution losses h'.
Hypothesis fallback_pair : forall S T, one_more S T ->
  both outputs (fallback S) (fallback T) losses f f'.
Hypothesis robust_pair : forall S T, one_more S T -> near S T ->
  both outputs (robust S) (robust T) losses g g'.
Hypothesis robust_pair_anyway : forall S T, one_more S T ->
  both outputs (robust S) (robust T) losses h h'.

Variable q : R.
Hypothesis rate : 0 < q <= 1.

Let labelled := labelled Loss losses.
Let accidents := case_one Noisy noisy test passes Loss f h.
Let accidents' := case_one' Noisy noisy test passes Loss f' h'.

Lemma accidents_at_zero : 1 <= hockey labelled accidents accidents' 0 /\
                          1 <= hockey labelled accidents' accidents 0.
Proof.
  assert (L : forall u v, distribution losses u -> distribution losses v ->
    distribution labelled (fun bz => accident Noisy noisy test passes (fst bz)
                                     * (if fst bz then u else v) (snd bz))).
  { intros u v U V. apply (joint_distribution branches losses (accident Noisy noisy test passes)
      (fun b => if b then u else v)).
    - apply chance_distribution. auto.
    - intros [] _; auto. }
  split; right; symmetry; apply hockey_at_zero; apply L; auto.
Qed.

(** *** Only the branch is released *)

(** The profile of margins d and d', and those that bound all with margins that differ
    by at most one: with the record removed, and added. *)
Definition step (d d' : Z) := hockey labelled
  (branch_pair Noisy noisy test passes Loss f g d) (branch_pair' Noisy noisy test passes Loss f' g' d').
Definition step' (d d' : Z) := hockey labelled
  (branch_pair Noisy noisy test passes Loss f' g' d) (branch_pair' Noisy noisy test passes Loss f g d').

Let revealing :=
  releasing_branch (list Record) Answer Noisy noisy margin test passes robust fallback.

Theorem sampled_branch_removing h0 hs x before after epsilon :
  (forall d d' a, 0 <= a -> (Z.abs (d - d') <= 1)%Z -> step d d' a <= worst h0 hs a) ->
  hockey (list_prod branches outputs)
    (sampled Record (bool * Answer) revealing q (before ++ x :: after) [])
    (sampled Record (bool * Answer) revealing q (before ++ after) []) (exp epsilon)
  <= Rmax (removing q (hockey labelled accidents accidents') (exp epsilon))
          (worst (removing q h0) (map (removing q) hs) (exp epsilon)).
Proof.
  intros W. rewrite Rmax_comm. rewrite <- removing_worst by lra.
  apply (sampled_cases_removing Record (bool * Answer) (list_prod branches outputs) revealing) with
    (h := hockey labelled accidents accidents') (hs := [worst h0 hs]); auto.
  - intros S. apply releasing_branch_distribution; auto.
  - apply accidents_at_zero.
  - intros b c e. cbn [worst fold_right]. rewrite Rmax_comm.
    destruct (ptr_releasing_the_branch (list Record) Answer outputs Noisy noisy margin test passes
      robust fallback test_law robust_law fallback_law one_more near margin_nonneg margin_close
      margin_safe Loss losses f f' g g' h h') with (S := b ++ x :: c) (T := b ++ c) (epsilon := e)
      as (d & d' & _ & _ & D & H).
    + intros S T N. apply fallback_pair, N.
    + intros S T N. apply robust_pair, N.
    + intros S T N. apply robust_pair_anyway, N.
    + exists x, b, c. auto.
    + eapply Rle_trans; [exact H|]. apply Rle_max_compat_l. apply W; auto. left. apply exp_pos.
Qed.

Theorem sampled_branch_adding h0 hs x before after epsilon :
  (forall d d' a, 0 <= a -> (Z.abs (d - d') <= 1)%Z -> step' d d' a <= worst h0 hs a) ->
  hockey (list_prod branches outputs)
    (sampled Record (bool * Answer) revealing q (before ++ after) [])
    (sampled Record (bool * Answer) revealing q (before ++ x :: after) []) (exp epsilon)
  <= Rmax (adding q (hockey labelled accidents' accidents) (exp epsilon))
          (worst (adding q h0) (map (adding q) hs) (exp epsilon)).
Proof.
  intros W. rewrite Rmax_comm. rewrite <- adding_worst by lra.
  apply (sampled_cases_adding Record (bool * Answer) (list_prod branches outputs) revealing) with
    (h := hockey labelled accidents' accidents) (hs := [worst h0 hs]); auto.
  - intros S. apply releasing_branch_distribution; auto.
  - apply accidents_at_zero.
  - intros b c e. cbn [worst fold_right]. rewrite Rmax_comm.
    destruct (ptr_releasing_the_branch (list Record) Answer outputs Noisy noisy margin test passes
      robust fallback test_law robust_law fallback_law (fun S T => one_more T S)
      (fun S T => near T S) margin_nonneg) with (f := f') (f' := f) (g := g') (g' := g)
      (h := h') (h' := h) (losses := losses) (S := b ++ c) (T := b ++ x :: c) (epsilon := e)
      as (d & d' & _ & _ & D & H).
    + intros S T N. specialize (margin_close T S N). lia.
    + intros S T N P. apply margin_safe; auto. tauto.
    + intros S T N. apply fallback_pair, N.
    + intros S T N. apply robust_pair, N.
    + intros S T N. apply robust_pair_anyway, N.
    + exists x, b, c. auto.
    + eapply Rle_trans; [exact H|]. apply Rle_max_compat_l. apply W; auto. left. apply exp_pos.
Qed.

(** *** Only the branch, of a margin that a record can only lower *)

Theorem sampled_monotone_removing h0 hs x before after epsilon :
  (forall S T, one_more S T -> (margin S <= margin T)%Z) ->
  (forall d a, 0 <= a -> step (d - 1) d a <= worst h0 hs a) ->
  (forall a, 0 <= a -> Rmax (hockey losses f f' a) (hockey losses g g' a) <= worst h0 hs a) ->
  hockey (list_prod branches outputs)
    (sampled Record (bool * Answer) revealing q (before ++ x :: after) [])
    (sampled Record (bool * Answer) revealing q (before ++ after) []) (exp epsilon)
  <= Rmax (removing q (hockey labelled accidents accidents') (exp epsilon))
          (worst (removing q h0) (map (removing q) hs) (exp epsilon)).
Proof.
  intros Mono W A. rewrite Rmax_comm. rewrite <- removing_worst by lra.
  apply (sampled_cases_removing Record (bool * Answer) (list_prod branches outputs) revealing) with
    (h := hockey labelled accidents accidents') (hs := [worst h0 hs]); auto.
  - intros S. apply releasing_branch_distribution; auto.
  - apply accidents_at_zero.
  - intros b c e. cbn [worst fold_right]. rewrite Rmax_comm.
    assert (E : 0 <= exp e) by (left; apply exp_pos).
    assert (N : one_more (b ++ x :: c) (b ++ c)) by (exists x, b, c; auto).
    destruct (ptr_releasing_a_monotone_branch (list Record) Answer outputs Noisy noisy margin test
      passes robust fallback test_law robust_law fallback_law one_more near margin_nonneg margin_close
      margin_safe Loss losses f f' g g' h h') with (S := b ++ x :: c) (T := b ++ c) (epsilon := e)
      as [H|(d & _ & H)]; auto.
    + intros S T O. apply fallback_pair, O.
    + intros S T O. apply robust_pair, O.
    + intros S T O. apply robust_pair_anyway, O.
    + eapply Rle_trans; [exact H|]. apply Rle_max_compat_l. apply A, E.
    + eapply Rle_trans; [exact H|]. apply Rle_max_compat_l. apply W, E.
Qed.

Theorem sampled_monotone_adding h0 hs x before after epsilon :
  (forall S T, one_more S T -> (margin S <= margin T)%Z) ->
  (forall d a, 0 <= a -> step' d (d - 1) a <= worst h0 hs a) ->
  (forall a, 0 <= a -> Rmax (hockey losses f' f a) (hockey losses g' g a) <= worst h0 hs a) ->
  hockey (list_prod branches outputs)
    (sampled Record (bool * Answer) revealing q (before ++ after) [])
    (sampled Record (bool * Answer) revealing q (before ++ x :: after) []) (exp epsilon)
  <= Rmax (adding q (hockey labelled accidents' accidents) (exp epsilon))
          (worst (adding q h0) (map (adding q) hs) (exp epsilon)).
Proof.
  intros Mono W A. rewrite Rmax_comm. rewrite <- adding_worst by lra.
  apply (sampled_cases_adding Record (bool * Answer) (list_prod branches outputs) revealing) with
    (h := hockey labelled accidents' accidents) (hs := [worst h0 hs]); auto.
  - intros S. apply releasing_branch_distribution; auto.
  - apply accidents_at_zero.
  - intros b c e. cbn [worst fold_right]. rewrite Rmax_comm.
    assert (E : 0 <= exp e) by (left; apply exp_pos).
    assert (N : one_more (b ++ x :: c) (b ++ c)) by (exists x, b, c; auto).
    destruct (monotone_removed (list Record) Answer outputs Noisy noisy margin test passes
      robust fallback test_law robust_law fallback_law (fun S T => one_more T S)
      (fun S T => near T S) margin_nonneg) with (f := f') (f' := f) (g := g') (g' := g)
      (h := h') (h' := h) (losses := losses) (S := b ++ c) (T := b ++ x :: c) (epsilon := e)
      as [H|(d & _ & H)]; auto.
    + intros S T O. specialize (margin_close T S O). lia.
    + intros S T O P. apply margin_safe; auto. tauto.
    + intros S T O. apply fallback_pair, O.
    + intros S T O. apply robust_pair, O.
    + intros S T O. apply robust_pair_anyway, O.
    + eapply Rle_trans; [exact H|]. apply Rle_max_compat_l. apply A, E.
    + eapply Rle_trans; [exact H|]. apply Rle_max_compat_l. apply W, E.
Qed.

(** *** The noisy margin is released *)

Variable Label : Type.
Variable labels : list Label.
Variables u u' : Label -> R.
Hypothesis test_pair : forall d d', (Z.abs (d - d') <= 1)%Z ->
  both noisy (test d) (test d') labels u u'.
Variables k k' : Loss -> R.
Hypothesis k_law : distribution losses k.
Hypothesis k_law' : distribution losses k'.
Hypothesis f_below_k : both losses f f' losses k k'.
Hypothesis g_below_k : both losses g g' losses k k'.

Let releasing := releasing_margin (list Record) Answer Noisy margin test passes robust fallback.

Theorem sampled_margin_removing x before after epsilon :
  hockey (list_prod noisy outputs)
    (sampled Record (Noisy * Answer) releasing q (before ++ x :: after) [])
    (sampled Record (Noisy * Answer) releasing q (before ++ after) []) (exp epsilon)
  <= worst (removing q (hockey labelled accidents accidents'))
           [removing q (hockey (list_prod labels losses) (product u k) (product u' k'))] (exp epsilon).
Proof.
  apply (sampled_cases_removing Record (Noisy * Answer) (list_prod noisy outputs) releasing) with
    (hs := [hockey (list_prod labels losses) (product u k) (product u' k')]); auto.
  - intros S. apply releasing_margin_distribution; auto.
  - apply accidents_at_zero.
  - intros b c e. cbn [worst fold_right]. rewrite Rmax_comm.
    apply (ptr_releasing_the_margin (list Record) Answer outputs Noisy noisy margin test passes
      robust fallback test_law robust_law fallback_law one_more near margin_nonneg margin_close
      margin_safe Loss losses f f' g g' h h'); auto.
    + intros S T N. apply fallback_pair, N.
    + intros S T N. apply robust_pair, N.
    + intros S T N. apply robust_pair_anyway, N.
    + intros d d' D. apply test_pair, D.
    + apply k_law.
    + apply k_law'.
    + apply f_below_k.
    + apply g_below_k.
    + exists x, b, c. auto.
Qed.

Theorem sampled_margin_adding x before after epsilon :
  hockey (list_prod noisy outputs)
    (sampled Record (Noisy * Answer) releasing q (before ++ after) [])
    (sampled Record (Noisy * Answer) releasing q (before ++ x :: after) []) (exp epsilon)
  <= worst (adding q (hockey labelled accidents' accidents))
           [adding q (hockey (list_prod labels losses) (product u' k') (product u k))] (exp epsilon).
Proof.
  apply (sampled_cases_adding Record (Noisy * Answer) (list_prod noisy outputs) releasing) with
    (hs := [hockey (list_prod labels losses) (product u' k') (product u k)]); auto.
  - intros S. apply releasing_margin_distribution; auto.
  - apply accidents_at_zero.
  - intros b c e. cbn [worst fold_right]. rewrite Rmax_comm.
    apply (ptr_releasing_the_margin (list Record) Answer outputs Noisy noisy margin test passes
      robust fallback test_law robust_law fallback_law (fun S T => one_more T S)
      (fun S T => near T S) margin_nonneg) with (f := f') (f' := f) (g := g') (g' := g)
      (h := h') (h' := h); auto.
    + intros S T N. specialize (margin_close T S N). lia.
    + intros S T N P. apply margin_safe; auto. tauto.
    + intros S T N. apply fallback_pair, N.
    + intros S T N. apply robust_pair, N.
    + intros S T N. apply robust_pair_anyway, N.
    + intros d d' D. apply test_pair. lia.
    + apply k_law'.
    + apply k_law.
    + apply f_below_k.
    + apply g_below_k.
    + exists x, b, c. auto.
Qed.

End SampledPTR.

(** *** Which margins tell, with discrete Laplace noise *)

(** Of all steps of the margin, those between B and B + 1 are the worst, or else the noise
    alone is: the pairs that [sampled_branch_removing] and [sampled_branch_adding] ask for. *)
Theorem telling_steps decay lo n B Loss (losses : list Loss) (f f' g g' : Loss -> R) :
  0 < decay < 1 -> (1 <= n)%nat -> (lo <= B < hi lo n)%Z ->
  let of_margins d d' := step Z Loss (window lo n) (law decay lo n) (fun s => B <? s)%Z
                           losses f f' g g' d d' in
  forall d d' a, 0 <= a -> (Z.abs (d - d') <= 1)%Z ->
  of_margins d d' a
  <= worst (of_margins B (B + 1)%Z)
       [of_margins (B + 1)%Z B; hockey losses f f'; hockey losses g g'] a.
Proof.
  intros D W I of_margins d d' a Ha C.
  assert (first := worst_first (of_margins B (B + 1)%Z)
    [of_margins (B + 1)%Z B; hockey losses f f'; hockey losses g g'] a).
  assert (other := fun k => worst_other (of_margins B (B + 1)%Z)
    [of_margins (B + 1)%Z B; hockey losses f f'; hockey losses g g'] k a).
  assert (alone : Rmax (hockey losses f f' a) (hockey losses g g' a)
    <= worst (of_margins B (B + 1)%Z)
         [of_margins (B + 1)%Z B; hockey losses f f'; hockey losses g g'] a)
    by (apply Rmax_lub; apply other; simpl; auto).
  set (m := worst _ _ a) in *. clearbody m.
  destruct (Z.eq_dec d d') as [<-|].
  { eapply Rle_trans; [apply equal_margins; auto|exact alone].
    intros; apply law_distribution; auto. }
  destruct (telling_margin decay D lo n W B I Loss losses f f' g g' (Z.max d d') a Ha) as [U V].
  destruct (Z.eq_dec d' (d + 1)) as [->|].
  - replace (Z.max d (d + 1)) with (d + 1)%Z in U by lia. replace (d + 1 - 1)%Z with d in U by lia.
    eapply Rle_trans; [exact U|]. apply Rmax_lub; auto.
  - assert (d = d' + 1)%Z as -> by lia.
    replace (Z.max (d' + 1) d') with (d' + 1)%Z in V by lia.
    replace (d' + 1 - 1)%Z with d' in V by lia.
    eapply Rle_trans; [exact V|]. apply Rmax_lub; auto. apply other. simpl. auto.
Qed.

(** ** The hypotheses can be met: a private quantile of a sampled batch *)

Lemma response_mirrored c a :
  hockey answers (fun b => response c (negb b)) (response c) a
  = hockey answers (response c) (fun b => response c (negb b)) a.
Proof. unfold hockey, sum, answers. simpl. lra. Qed.

Lemma geometric_both decay lo n m d d' :
  0 < decay < 1 -> (1 <= n)%nat -> (Z.abs (d - d') <= Z.of_nat m)%Z ->
  both (window lo n) (law decay lo n d) (law decay lo n d')
       answers (PrivateQuantile.told (decay ^ m)) (PrivateQuantile.untold (decay ^ m)).
Proof.
  intros D W B. split; [apply geometric_dominated; auto|]. intros a A.
  unfold PrivateQuantile.told, PrivateQuantile.untold. rewrite response_mirrored.
  apply geometric_dominated; auto. lia.
Qed.

Theorem sampled_private_quantile low high a b tau cap decay r s margin_low value_low
    margin_width value_width threshold rate x before after epsilon :
  (low <= high)%Z -> (0 < a <= b)%Z -> (0 <= cap)%Z ->
  0 < decay < 1 -> 0 < r < 1 -> 0 < s < 1 -> (1 <= margin_width)%nat -> (1 <= value_width)%nat ->
  (margin_low <= threshold < hi margin_low margin_width)%Z -> 0 < rate <= 1 ->
  let release := PrivateQuantile.releases_branch low high a b tau cap decay r s margin_low value_low
                   margin_width value_width threshold in
  let accidents := PrivateQuantile.accidents low high decay r s margin_low margin_width threshold in
  let step := PrivateQuantile.step low high tau decay r s margin_low margin_width threshold in
  hockey (list_prod branches (PrivateQuantile.values value_low value_width))
    (sampled Z (bool * Z) release rate (before ++ x :: after) [])
    (sampled Z (bool * Z) release rate (before ++ after) []) (exp epsilon)
  <= Rmax (removing rate accidents (exp epsilon))
       (worst (removing rate (step threshold (threshold + 1)%Z))
         (map (removing rate)
           [step (threshold + 1)%Z threshold;
            PrivateQuantile.noise (s ^ PrivateQuantile.diameter low high);
            PrivateQuantile.noise (r ^ tau)]) (exp epsilon)).
Proof.
  intros HR HF HC HD Hr Hs HM HV HT Q release accidents step0.
  assert (next : forall S T, one_more Z S T -> PrivateQuantile.neighbours S T).
  { intros S T (y & u & v & -> & ->). exists y. left. symmetry. apply Permutation_middle. }
  assert (resp : forall c m, 0 < c < 1 -> distribution answers (PrivateQuantile.told (c ^ m)) /\
                                       distribution answers (PrivateQuantile.untold (c ^ m))).
  { intros c m C. pose proof (power_positive c C m). pose proof (power_at_most_one c C m).
    assert (1 <= / c ^ m) by (rewrite <- Rinv_1 at 1; apply Rinv_le_contravar; lra).
    split; [apply response_distribution|apply swapped_response_distribution]; auto. }
  apply (sampled_branch_removing Z Z Z bool (PrivateQuantile.values value_low value_width)
    (PrivateQuantile.margins margin_low margin_width)
    (PrivateQuantile.margin_of low high a b tau cap)
    (PrivateQuantile.test decay margin_low margin_width) (PrivateQuantile.passes threshold)
    (PrivateQuantile.robust low high a b r value_low value_width)
    (PrivateQuantile.fallback low high a b s value_low value_width)) with
    (near := PrivateQuantile.near low high a b tau) (losses := answers)
    (f := PrivateQuantile.told (s ^ PrivateQuantile.diameter low high))
    (f' := PrivateQuantile.untold (s ^ PrivateQuantile.diameter low high))
    (g := PrivateQuantile.told (r ^ tau)) (g' := PrivateQuantile.untold (r ^ tau))
    (h := PrivateQuantile.told (r ^ PrivateQuantile.diameter low high))
    (h' := PrivateQuantile.untold (r ^ PrivateQuantile.diameter low high)); auto;
    try (intros; apply law_distribution; auto); try apply resp; auto.
  - intros S. eapply PrivateQuantile.margin_nonneg; eauto.
  - intros S T N. eapply PrivateQuantile.margin_close; eauto.
  - intros S T N. apply (PrivateQuantile.margin_safe low high a b tau cap HR HF decay r s HD Hr Hs
      margin_low margin_width value_width HM HV threshold HT); auto.
  - intros S T N. apply geometric_both; auto. eapply PrivateQuantile.any_two; eauto.
  - intros S T N C. apply geometric_both; auto.
  - intros S T N. apply geometric_both; auto. eapply PrivateQuantile.any_two; eauto.
  - apply telling_steps; auto.
Qed.
