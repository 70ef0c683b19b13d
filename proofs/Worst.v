(** The worse of two profiles is the profile of a pair.

    So a mechanism that is in one of two cases, which may vary from step to step
    and depend on earlier answers, is dominated at each step by one pair, and
    [Finite.composition_of_many] applies. *)

From Coq Require Import Reals List Lra Lia Bool Classical_Prop.
From Prudent Require Import Finite.
Import ListNotations.
Open Scope R_scope.

(** A pair as the list of the masses of its outcomes. *)
Definition masses := list (R * R).
Definition profile (l : masses) (a : R) : R := hockey l fst snd a.
Definition pair (l : masses) : Prop := distribution l fst /\ distribution l snd.

(** Any pair can be written so. *)
Lemma as_masses {A} (l : list A) P Q a :
  profile (map (fun x => (P x, Q x)) l) a = hockey l P Q a.
Proof. unfold profile, hockey. rewrite sum_map. reflexivity. Qed.

Lemma profile_cons p q l a : profile ((p, q) :: l) a = positive_part (p - a * q) + profile l a.
Proof. reflexivity. Qed.

Lemma profile_app l k a : profile (l ++ k) a = profile l a + profile k a.
Proof. apply sum_app. Qed.

Lemma profile_convex l x y t :
  0 <= t <= 1 -> profile l (t * x + (1 - t) * y) <= t * profile l x + (1 - t) * profile l y.
Proof.
  intros T. unfold profile, hockey. rewrite <- !sum_scale, <- sum_plus. apply sum_le. intros [p q] _.
  rewrite <- !positive_part_scale by lra. eapply Rle_trans; [|apply positive_part_plus].
  right. f_equal. ring.
Qed.

Lemma profile_continuous l : continuity (profile l).
Proof.
  induction l as [|[p q] l IH].
  - intros x. apply continuity_pt_const. intros y z. reflexivity.
  - assert (C : continuity (fun a => positive_part (p - a * q))).
    { intros x.
      assert (E : forall a, positive_part (p - a * q) = ((p - a * q) + Rabs (p - a * q)) / 2).
      { intros a. unfold positive_part, Rmax, Rabs.
        destruct (Rle_dec 0 (p - a * q)), (Rcase_abs (p - a * q)); lra. }
      apply (continuity_pt_locally_ext (fun a => ((p - a * q) + Rabs (p - a * q)) / 2) _ 1 x);
        [lra|intros; symmetry; apply E|].
      assert (D : continuity_pt (fun a => p - a * q) x) by (apply derivable_continuous_pt; reg).
      apply continuity_pt_mult; [|apply continuity_pt_const; intros y z; reflexivity].
      apply continuity_pt_plus; auto.
      apply (continuity_pt_comp (fun a => p - a * q) Rabs); auto. apply Rcontinuity_abs. }
    intros x. apply (continuity_pt_plus (fun a => positive_part (p - a * q)) (profile l)); auto.
Qed.

(** ** Spreading outcomes: the loss between a and b is moved to a or b *)

Section Spread.
Variables a b : R.
Hypothesis order : 0 <= a < b.

Definition spread_one (pq : R * R) : masses :=
  let (p, q) := pq in
  if Rle_dec (a * q) p then
    if Rle_dec p (b * q) then
      let u := (b * q - p) / (b - a) in
      let v := (p - a * q) / (b - a) in [(a * u, u); (b * v, v)]
    else [pq]
  else [pq].

Definition spread (l : masses) : masses := flat_map spread_one l.

Lemma spread_one_nonneg pq : 0 <= fst pq -> 0 <= snd pq ->
  forall x, In x (spread_one pq) -> 0 <= fst x /\ 0 <= snd x.
Proof.
  destruct pq as [p q]. simpl. intros P Q x.
  assert (I : 0 < / (b - a)) by (apply Rinv_0_lt_compat; lra).
  destruct (Rle_dec (a * q) p), (Rle_dec p (b * q)); simpl; try (intros [<-|[]]; simpl; lra).
  assert (0 <= (b * q - p) / (b - a)) by (apply Rmult_le_pos; lra).
  assert (0 <= (p - a * q) / (b - a)) by (apply Rmult_le_pos; lra).
  intros [<-|[<-|[]]]; simpl; split; auto; apply Rmult_le_pos; lra.
Qed.

Lemma spread_one_sums pq : sum (spread_one pq) fst = fst pq /\ sum (spread_one pq) snd = snd pq.
Proof.
  destruct pq as [p q]. simpl. destruct (Rle_dec (a * q) p), (Rle_dec p (b * q)); unfold sum; simpl;
    split; try lra; field; lra.
Qed.

Lemma sum_spread f l : sum (spread l) f = sum l (fun x => sum (spread_one x) f).
Proof. induction l; simpl; auto. rewrite sum_app, IHl. reflexivity. Qed.

Lemma spread_pair l : pair l -> pair (spread l).
Proof.
  intros [[NP SP] [NQ SQ]].
  assert (N : forall x, In x (spread l) -> 0 <= fst x /\ 0 <= snd x).
  { intros x I. apply in_flat_map in I. destruct I as (y & Y & I).
    apply (spread_one_nonneg y); auto. }
  split; split.
  - intros x I. apply N, I.
  - rewrite sum_spread, <- SP. apply sum_ext. intros x _. apply spread_one_sums.
  - intros x I. apply N, I.
  - rewrite sum_spread, <- SQ. apply sum_ext. intros x _. apply spread_one_sums.
Qed.

(** Outside nothing changes; between, the profile becomes its chord. *)
Lemma spread_one_outside pq c : 0 <= snd pq -> c <= a \/ b <= c ->
  profile (spread_one pq) c = positive_part (fst pq - c * snd pq).
Proof.
  destruct pq as [p q]. simpl. intros Q C.
  assert (I : 0 < / (b - a)) by (apply Rinv_0_lt_compat; lra).
  destruct (Rle_dec (a * q) p), (Rle_dec p (b * q)); unfold profile, hockey, sum; simpl; try lra.
  assert (U : 0 <= (b * q - p) / (b - a)) by (apply Rmult_le_pos; lra).
  assert (V : 0 <= (p - a * q) / (b - a)) by (apply Rmult_le_pos; lra).
  assert (S : (a - c) * ((b * q - p) / (b - a)) + (b - c) * ((p - a * q) / (b - a)) = p - c * q)
    by (field; lra).
  destruct C as [C|C].
  - rewrite !positive_part_of_nonneg; [lra| | |]; nra.
  - rewrite !positive_part_of_nonpos; [lra| | |]; nra.
Qed.

Lemma spread_one_between pq c : 0 <= snd pq -> a <= c <= b ->
  profile (spread_one pq) c
  = ((b - c) * positive_part (fst pq - a * snd pq) + (c - a) * positive_part (fst pq - b * snd pq)) / (b - a).
Proof.
  destruct pq as [p q]. simpl. intros Q C.
  assert (I : 0 < / (b - a)) by (apply Rinv_0_lt_compat; lra).
  destruct (Rle_dec (a * q) p) as [L|L]; [destruct (Rle_dec p (b * q)) as [M|M]|];
    unfold profile, hockey, sum; simpl.
  - assert (U : 0 <= (b * q - p) / (b - a)) by (apply Rmult_le_pos; lra).
    assert (V : 0 <= (p - a * q) / (b - a)) by (apply Rmult_le_pos; lra).
    rewrite (positive_part_of_nonpos (a * _ - _)) by nra.
    rewrite (positive_part_of_nonneg (b * _ - _)) by nra.
    rewrite (positive_part_of_nonneg (p - a * q)) by lra.
    rewrite (positive_part_of_nonpos (p - b * q)) by lra. field. lra.
  - assert (c * q <= b * q) by (apply Rmult_le_compat_r; lra).
    rewrite !positive_part_of_nonneg by lra. field. lra.
  - assert (a * q <= c * q) by (apply Rmult_le_compat_r; lra).
    assert (a * q <= b * q) by (apply Rmult_le_compat_r; lra).
    rewrite !positive_part_of_nonpos by lra. field. lra.
Qed.

Lemma spread_outside l c : pair l -> c <= a \/ b <= c -> profile (spread l) c = profile l c.
Proof.
  intros [_ [NQ _]] C. unfold profile at 1, hockey. rewrite sum_spread.
  apply sum_ext. intros x X. apply (spread_one_outside x c); auto.
Qed.

Lemma spread_between l c : pair l -> a <= c <= b ->
  profile (spread l) c = ((b - c) * profile l a + (c - a) * profile l b) / (b - a).
Proof.
  intros [_ [NQ _]] C. unfold profile at 1, hockey. rewrite sum_spread.
  rewrite (sum_ext l _ (fun x => / (b - a) * ((b - c) * positive_part (fst x - a * snd x)
             + (c - a) * positive_part (fst x - b * snd x)))).
  - rewrite sum_scale, sum_plus, !sum_scale. unfold profile, hockey, Rdiv. ring.
  - intros x X. pose proof (spread_one_between x c (NQ x X) C) as E.
    unfold profile, hockey in E. rewrite E. unfold Rdiv. ring.
Qed.

End Spread.

(** ** Cutting: a loss above a is moved to a, or to infinity *)

Definition cut_one (a : R) (pq : R * R) : masses :=
  let (p, q) := pq in if Rle_dec (a * q) p then [(a * q, q); (p - a * q, 0)] else [pq].

Definition cut (a : R) (l : masses) : masses := flat_map (cut_one a) l.

Lemma sum_cut a f l : sum (cut a l) f = sum l (fun x => sum (cut_one a x) f).
Proof. induction l; simpl; auto. rewrite sum_app, IHl. reflexivity. Qed.

Lemma cut_pair a l : 0 <= a -> pair l -> pair (cut a l).
Proof.
  intros A [[NP SP] [NQ SQ]].
  assert (N : forall x, In x (cut a l) -> 0 <= fst x /\ 0 <= snd x).
  { intros x I. apply in_flat_map in I. destruct I as ([p q] & Y & I).
    pose proof (NP _ Y) as P. pose proof (NQ _ Y) as Q. simpl in *.
    assert (0 <= a * q) by (apply Rmult_le_pos; lra).
    destruct (Rle_dec (a * q) p); [destruct I as [<-|[<-|[]]]|destruct I as [<-|[]]]; simpl; lra. }
  split; split; try (intros x I; apply N, I).
  - rewrite sum_cut, <- SP. apply sum_ext. intros [p q] _. simpl.
    destruct (Rle_dec (a * q) p); unfold sum; simpl; lra.
  - rewrite sum_cut, <- SQ. apply sum_ext. intros [p q] _. simpl.
    destruct (Rle_dec (a * q) p); unfold sum; simpl; lra.
Qed.

Lemma cut_profile a l c : pair l -> profile (cut a l) c = profile l (Rmin c a).
Proof.
  intros [_ [NQ _]]. unfold profile at 1, hockey. rewrite sum_cut. apply sum_ext.
  intros [p q] X. pose proof (NQ _ X) as Q. simpl in *.
  unfold Rmin. destruct (Rle_dec (a * q) p), (Rle_dec c a); unfold sum; simpl.
  - assert (c * q <= a * q) by (apply Rmult_le_compat_r; lra).
    rewrite !positive_part_of_nonneg by lra. lra.
  - assert (a * q <= c * q) by (apply Rmult_le_compat_r; lra).
    rewrite (positive_part_of_nonpos (a * q - c * q)) by lra. rewrite Rmult_0_r. 
    replace (p - a * q - 0) with (p - a * q) by ring. lra.
  - lra.
  - assert (a * q <= c * q) by (apply Rmult_le_compat_r; lra).
    rewrite !positive_part_of_nonpos by lra. lra.
Qed.

Lemma profile_decreasing l x y : pair l -> x <= y -> profile l y <= profile l x.
Proof.
  intros [_ [NQ _]] L. apply sum_le. intros z Z. apply positive_part_mono.
  assert (x * snd z <= y * snd z) by (apply Rmult_le_compat_r; auto). lra.
Qed.

(** ** One line more *)

Lemma add_line l alpha beta :
  pair l -> alpha <= 1 -> 0 <= beta ->
  exists l', pair l' /\ forall c, 0 <= c -> profile l' c = Rmax (profile l c) (alpha - c * beta).
Proof.
  intros W A B. set (D := fun c => alpha - c * beta - profile l c).
  destruct (classic (exists c, 0 <= c /\ 0 < D c)) as [(a0 & A0 & Hi)|none].
  2:{ exists l. split; auto. intros c C. symmetry. apply Rmax_left.
      apply Rnot_lt_le. intros L. apply none. exists c. unfold D. split; auto. lra. }
  assert (cont : continuity D).
  { intros x. apply (continuity_pt_minus (fun c => alpha - c * beta) (profile l)).
    - apply derivable_continuous_pt. reg.
    - apply profile_continuous. }
  assert (concave : forall x y t, 0 <= t <= 1 -> t * D x + (1 - t) * D y <= D (t * x + (1 - t) * y)).
  { intros x y t T. pose proof (profile_convex l x y t T). unfold D. lra. }
  (* Between x and y, of which neither is below zero and one is above, D is above zero. *)
  assert (above : forall x z y, x < z < y -> 0 <= D x -> 0 <= D y -> 0 < D x \/ 0 < D y -> 0 < D z).
  { intros x z y L X Y S. set (t := (y - z) / (y - x)).
    assert (T : 0 < t < 1).
    { unfold t. assert (0 < / (y - x)) by (apply Rinv_0_lt_compat; lra). split.
      - apply Rmult_lt_0_compat; lra.
      - apply Rmult_lt_reg_r with (y - x); [lra|]. unfold Rdiv. rewrite Rmult_assoc, Rinv_l; lra. }
    assert (E : t * x + (1 - t) * y = z) by (unfold t; field; lra).
    pose proof (concave x y t ltac:(lra)) as K. rewrite E in K. nra. }
  assert (D0 : D 0 <= 0).
  { unfold D. destruct W as [WP _]. unfold profile. rewrite hockey_at_zero by auto. lra. }
  destruct (IVT_cor D 0 a0 cont A0) as (a1 & L1 & Z1); [nra|].
  assert (a1 < a0) by (destruct (Req_dec a1 a0) as [E|]; [rewrite E in Z1; lra|lra]).
  assert (left_of : forall c, 0 <= c < a1 -> D c <= 0).
  { intros c C. apply Rnot_lt_le. intros P.
    pose proof (above c a1 a0 ltac:(lra) ltac:(lra) ltac:(lra) ltac:(auto)). lra. }
  destruct (Req_dec beta 0) as [Zb|Nb].
  - exists (cut a1 l). split; [apply cut_pair; auto; lra|]. intros c C. rewrite cut_profile by auto.
    unfold D in *. rewrite Zb, !Rmult_0_r in *. unfold Rmin. destruct (Rle_dec c a1).
    + symmetry. apply Rmax_left. pose proof (profile_decreasing l c a1 W ltac:(lra)). lra.
    + pose proof (profile_decreasing l a1 c W ltac:(lra)).
      rewrite Rmax_right by lra. lra.
  - assert (E0 : D (alpha / beta) <= 0).
    { unfold D. replace (alpha - alpha / beta * beta) with 0 by (field; auto).
      pose proof (hockey_nonneg l fst snd (alpha / beta)). unfold profile. lra. }
    assert (far : a0 <= alpha / beta).
    { assert (a0 * beta <= alpha).
      { pose proof (hockey_nonneg l fst snd a0). unfold D, profile in Hi. lra. }
      apply Rmult_le_reg_r with beta; [lra|]. unfold Rdiv. rewrite Rmult_assoc, Rinv_l; lra. }
    destruct (IVT_cor D a0 (alpha / beta) cont far) as (a2 & L2 & Z2); [nra|].
    assert (a0 < a2) by (destruct (Req_dec a2 a0) as [E|]; [rewrite E in Z2; lra|lra]).
    assert (right_of : forall c, a2 < c -> D c <= 0).
    { intros c C. apply Rnot_lt_le. intros P.
      pose proof (above a0 a2 c ltac:(lra) ltac:(lra) ltac:(lra) ltac:(auto)). lra. }
    assert (O : 0 <= a1 < a2) by lra.
    exists (spread a1 a2 l). split; [apply spread_pair; auto|]. intros c C.
    destruct (Rlt_dec c a1) as [|n1]; [|destruct (Rlt_dec a2 c) as [|n2]].
    + rewrite spread_outside by (auto; lra). symmetry. apply Rmax_left.
      pose proof (left_of c ltac:(lra)). unfold D in *. lra.
    + rewrite spread_outside by (auto; lra). symmetry. apply Rmax_left.
      pose proof (right_of c ltac:(lra)). unfold D in *. lra.
    + rewrite spread_between by (auto; lra).
      assert (P1 : profile l a1 = alpha - a1 * beta) by (unfold D in Z1; lra).
      assert (P2 : profile l a2 = alpha - a2 * beta) by (unfold D in Z2; lra).
      rewrite P1, P2. rewrite Rmax_right.
      * field. lra.
      * assert (0 <= D c); [|unfold D in *; lra].
        destruct (Req_dec c a1) as [->|]; [lra|]. destruct (Req_dec c a2) as [->|]; [lra|].
        set (t := (a2 - c) / (a2 - a1)).
        assert (T : 0 <= t <= 1).
        { unfold t. assert (0 < / (a2 - a1)) by (apply Rinv_0_lt_compat; lra). split.
          - apply Rmult_le_pos; lra.
          - apply Rmult_le_reg_r with (a2 - a1); [lra|]. unfold Rdiv. rewrite Rmult_assoc, Rinv_l; lra. }
        assert (E : t * a1 + (1 - t) * a2 = c) by (unfold t; field; lra).
        pose proof (concave a1 a2 t T) as K. rewrite E, Z1, Z2 in K. lra.
Qed.

(** ** A profile is the largest of finitely many lines: one for each event *)

Fixpoint events (l : masses) : list (R * R) :=
  match l with
  | [] => [(0, 0)]
  | (p, q) :: l' => events l' ++ map (fun e => (p + fst e, q + snd e)) (events l')
  end.

Lemma events_below l e a : In e (events l) -> fst e - a * snd e <= profile l a.
Proof.
  revert e; induction l as [|[p q] l IH]; intros e I.
  - destruct I as [<-|[]]. unfold profile, hockey, sum. simpl. lra.
  - rewrite profile_cons. pose proof (positive_part_nonneg (p - a * q)).
    pose proof (positive_part_ge (p - a * q)). apply in_app_or in I. destruct I as [I|I].
    + specialize (IH e I). lra.
    + apply in_map_iff in I. destruct I as (e' & <- & I). specialize (IH e' I). simpl. lra.
Qed.

Lemma events_attain l a : exists e, In e (events l) /\ fst e - a * snd e = profile l a.
Proof.
  induction l as [|[p q] l (e & I & E)].
  - exists (0, 0). split; [simpl; auto|]. unfold profile, hockey, sum. simpl. lra.
  - rewrite profile_cons. unfold positive_part, Rmax. destruct (Rle_dec 0 (p - a * q)).
    + exists (p + fst e, q + snd e). split; [|simpl; lra].
      apply in_or_app. right. apply in_map_iff. exists e. auto.
    + exists e. split; [apply in_or_app; auto|]. lra.
Qed.

Lemma events_range l e :
  nonnegative l fst -> nonnegative l snd -> In e (events l) ->
  0 <= snd e /\ fst e <= sum l fst.
Proof.
  revert e; induction l as [|[p q] l IH]; intros e NP NQ I.
  - destruct I as [<-|[]]. unfold sum. simpl. lra.
  - pose proof (NP (p, q) (or_introl eq_refl)) as P. pose proof (NQ (p, q) (or_introl eq_refl)) as Q.
    simpl in P, Q. assert (J : forall e, In e (events l) -> 0 <= snd e /\ fst e <= sum l fst).
    { intros e' I'. apply IH; auto; intros x X; [apply NP|apply NQ]; simpl; auto. }
    apply in_app_or in I. cbn [sum fold_right]. fold (sum l fst).
    change (0 <= snd e /\ fst e <= p + sum l fst). destruct I as [I|I].
    + destruct (J e I). lra.
    + apply in_map_iff in I. destruct I as (e' & <- & I). destruct (J e' I). simpl. lra.
Qed.

Lemma add_lines l es :
  pair l -> (forall e, In e es -> 0 <= snd e /\ fst e <= 1) ->
  exists l', pair l' /\ forall c, 0 <= c ->
    profile l c <= profile l' c /\
    (forall e, In e es -> fst e - c * snd e <= profile l' c) /\
    (profile l' c = profile l c \/ exists e, In e es /\ profile l' c = fst e - c * snd e).
Proof.
  intros W. induction es as [|e es IH]; intros H.
  - exists l. split; auto. intros c C. split; [lra|]. split; [easy|auto].
  - destruct IH as (k & Wk & K); [intros; apply H; simpl; auto|].
    destruct (H e (or_introl eq_refl)) as [E0 E1].
    destruct (add_line k (fst e) (snd e) Wk E1 E0) as (l' & W' & L'). exists l'. split; auto.
    intros c C. destruct (K c C) as (K1 & K2 & K3). rewrite (L' c C).
    pose proof (Rmax_l (profile k c) (fst e - c * snd e)).
    pose proof (Rmax_r (profile k c) (fst e - c * snd e)). split; [lra|]. split.
    + intros e' [<-|I]; [lra|]. specialize (K2 e' I). lra.
    + unfold Rmax in *. destruct (Rle_dec (profile k c) (fst e - c * snd e)).
      * right. exists e. split; [simpl; auto|reflexivity].
      * destruct K3 as [->|(e' & I & ->)]; auto. right. exists e'. split; [simpl; auto|reflexivity].
Qed.

(** The theorem: the worse of two profiles, at each epsilon, is that of one pair. *)
Theorem worse_of_two l k :
  pair l -> pair k ->
  exists m, pair m /\ forall a, 0 <= a -> profile m a = Rmax (profile l a) (profile k a).
Proof.
  intros Wl Wk. destruct Wk as [[NP SP] [NQ SQ]].
  destruct (add_lines l (events k) Wl) as (m & Wm & M).
  { intros e I. destruct (events_range k e NP NQ I). rewrite SP in *. auto. }
  exists m. split; auto. intros a A. destruct (M a A) as (M1 & M2 & M3).
  destruct (events_attain k a) as (e & I & E). pose proof (M2 e I) as M4. rewrite E in M4.
  apply Rle_antisym; [|apply Rmax_lub; auto].
  destruct M3 as [->|(e' & I' & ->)]; [apply Rmax_l|].
  eapply Rle_trans; [apply (events_below k e' a I')|apply Rmax_r].
Qed.

(** So steps that are each in one of two cases, whichever and however chosen, are
    dominated by draws of that one pair. *)
Theorem cases_compose {A} (l k : masses) (outputs : list A) (P Q : list A -> A -> R) :
  pair l -> pair k ->
  (forall h, distribution outputs (P h)) -> (forall h, distribution outputs (Q h)) ->
  (forall h a, 0 <= a -> hockey outputs (P h) (Q h) a <= Rmax (profile l a) (profile k a)) ->
  exists m, pair m /\
    (forall a, 0 <= a -> profile m a = Rmax (profile l a) (profile k a)) /\
    forall n, dominated (tuples outputs n) (steps P [] n) (steps Q [] n)
                        (tuples m n) (draws fst n) (draws snd n).
Proof.
  intros Wl Wk DP DQ H. destruct (worse_of_two l k Wl Wk) as (m & Wm & M).
  exists m. split; auto. split; auto. intros n.
  apply composition_of_many; auto; try apply Wm.
  intros h a A0. pose proof (H h a A0). fold (profile m a). rewrite M by auto. auto.
Qed.

(** *** Sanity: neither of two pairs need dominate the other *)

Example neither_is_worse :
  let l := [(1 / 2, 0); (1 / 2, 1)] in          (* tells all, half of the time *)
  let k := [(3 / 4, 1 / 4); (1 / 4, 3 / 4)] in  (* randomised response *)
  profile l (1 / 2) < profile k (1 / 2) /\ profile k 2 < profile l 2.
Proof.
  cbv zeta. unfold profile, hockey, sum, positive_part, Rmax. simpl.
  split; repeat match goal with |- context [Rle_dec ?x ?y] =>
    destruct (Rle_dec x y); try (exfalso; lra) end; lra.
Qed.
