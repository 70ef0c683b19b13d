(** Profiles, tails and thresholds in rational numbers, which can be extracted and
    run, and that they are the real ones of the theorems. *)

From Coq Require Import Reals QArith Qreals ZArith List Lra Lia Bool.
From Prudent Require Import Finite Sampling Pure ProposeTestRelease Geometric.
From Prudent Require Filter DiscreteGaussian.
Import ListNotations.
Open Scope Q_scope.

(** ** Definitions, which are also extracted *)

(** A pair: the masses of each outcome, with the record and without it. *)
Definition pair := list (Q * Q).

Definition positive (x : Q) : Q := if Qle_bool 0 x then x else 0%Q.

Definition profile (p : pair) (a : Q) : Q :=
  fold_right (fun pq s => Qred (positive (fst pq - a * snd pq) + s)) 0%Q p.

Definition swapped (p : pair) : pair := map (fun pq => (snd pq, fst pq)) p.

Definition removing_q (rate : Q) (h : Q -> Q) (a : Q) : Q :=
  if Qle_bool (1 - rate) a then rate * h ((a - 1 + rate) / rate) else 1 - a.

Definition adding_q (rate : Q) (h : Q -> Q) (a : Q) : Q :=
  let c := 1 - a * (1 - rate) in if Qle_bool c 0 then 0%Q else c * h (a * rate / c).

Fixpoint power (q : Q) (n : nat) : Q :=
  match n with O => 1%Q | S m => Qred (q * power q m) end.

Definition tail_q (q : Q) (j : Z) : Q :=
  if (0 <=? j)%Z then power q (Z.to_nat (j + 1)) / (1 + q)
  else 1 - power q (Z.to_nat (- j)) / (1 + q).

(** The least of the next [fuel] thresholds at which a margin of 0 passes with a
    probability of at most [failure]. *)
Fixpoint threshold (q failure : Q) (fuel : nat) (k : Z) : Z :=
  match fuel with
  | O => k
  | S more => if Qle_bool (tail_q q k) failure then k else threshold q failure more (k + 1)
  end.

(** A label, and what is released beside it: nothing, or everything. *)
Definition component (tells : bool) (present absent : Q) : pair :=
  if tells then [(present, 0%Q); (0%Q, absent)] else [(present, absent)].

(** The pairs of Propose-Test-Release, with noise that tells all or nothing. *)
Definition branch_pair_q (q : Q) (B d d' : Z) (fallback_tells robust_tells : bool) : pair :=
  component fallback_tells (1 - tail_q q (B - d)) (1 - tail_q q (B - d'))
  ++ component robust_tells (tail_q q (B - d)) (tail_q q (B - d')).

(** [accident_tells]: what a record that moves the value by any amount does. *)
Definition case_one_q (q : Q) (B : Z) (fallback_tells accident_tells : bool) : pair :=
  branch_pair_q q B 0 0 fallback_tells accident_tells.

(** The pair of the noisy margin. *)
Definition response_q (q : Q) : pair := [(1 / (1 + q), q / (1 + q)); (q / (1 + q), 1 / (1 + q))].

(** Two answers: the pair of the first and that of the second. *)
Definition product_q (p k : pair) : pair :=
  map (fun xy => (Qred (fst (fst xy) * fst (snd xy)), Qred (snd (fst xy) * snd (snd xy))))
    (list_prod p k).

(** The profile of a range of length epsilon, at squares: e^epsilon = s^2, a = t^2. *)
Definition bounded_range_q (s t : Q) : Q := power (1 - t / s) 2 / (1 - / power s 2).

(** 1 + a + ... + a^(k-1), by which delta grows for k records. *)
Fixpoint geometric_q (a : Q) (k : nat) : Q :=
  match k with O => 0%Q | S k' => Qred (1 + a * geometric_q a k') end.

(** Whether a budget admits questions at these prices, one after the other. *)
Fixpoint admitted_q (prices : list Q) (budget : Q) : bool :=
  match prices with
  | [] => Qle_bool 0 budget
  | price :: rest => admitted_q rest (Qred (budget - price))
  end.

(** rho of discrete Gaussian noise of scale sigma, of values that change by so much. *)
Definition rho_q (sigma : Q) (changes : list Z) : Q :=
  fold_right (fun c s => Qred (inject_Z (c * c) / (2 * power sigma 2) + s)) 0%Q changes.

(** delta at a = e^epsilon, of a divergence ln d at the order n. *)
Definition delta_q (n : nat) (d a : Q) : Q :=
  let order := inject_Z (Z.of_nat n) in power (d / a * (1 - / order)) (n - 1) / order.

(** ** They are the real ones *)

Open Scope R_scope.

Definition fst_r (pq : Q * Q) : R := Q2R (fst pq).
Definition snd_r (pq : Q * Q) : R := Q2R (snd pq).

Lemma Q2R_red x : Q2R (Qred x) = Q2R x.
Proof. apply Qeq_eqR, Qred_correct. Qed.

Lemma Q2R_0 : Q2R 0 = 0.
Proof. unfold Q2R. simpl. lra. Qed.
Lemma Q2R_1 : Q2R 1 = 1.
Proof. unfold Q2R. simpl. lra. Qed.

Lemma positive_real x : Q2R (positive x) = positive_part (Q2R x).
Proof.
  unfold positive. destruct (Qle_bool 0 x) eqn:E.
  - apply Qle_bool_iff, Qle_Rle in E. rewrite Q2R_0 in E. rewrite positive_part_of_nonneg; auto.
  - assert (L : (x <= 0)%Q).
    { apply Qnot_lt_le. intros L. apply Qlt_le_weak in L. apply Qle_bool_iff in L. congruence. }
    apply Qle_Rle in L. rewrite Q2R_0 in *. rewrite positive_part_of_nonpos; auto.
Qed.

Theorem profile_real p a : Q2R (profile p a) = hockey p fst_r snd_r (Q2R a).
Proof.
  induction p as [|[x y] p IH]; [apply Q2R_0|].
  change (Q2R (Qred (positive (x - a * y) + profile p a))
    = positive_part (Q2R x - Q2R a * Q2R y) + hockey p fst_r snd_r (Q2R a)).
  rewrite Q2R_red, Q2R_plus, positive_real, Q2R_minus, Q2R_mult, IH. reflexivity.
Qed.

Theorem swapped_real p a : Q2R (profile (swapped p) a) = hockey p snd_r fst_r (Q2R a).
Proof.
  induction p as [|[x y] p IH]; [apply Q2R_0|].
  change (Q2R (Qred (positive (y - a * x) + profile (swapped p) a))
    = positive_part (Q2R y - Q2R a * Q2R x) + hockey p snd_r fst_r (Q2R a)).
  rewrite Q2R_red, Q2R_plus, positive_real, Q2R_minus, Q2R_mult, IH. reflexivity.
Qed.

Theorem removing_real rate (h : Q -> Q) (k : R -> R) a :
  (0 < rate)%Q -> (forall b, Q2R (h b) = k (Q2R b)) ->
  Q2R (removing_q rate h a) = removing (Q2R rate) k (Q2R a).
Proof.
  intros P H. unfold removing_q, removing.
  assert (N : ~ (rate == 0)%Q) by (intros E; rewrite E in P; revert P; apply Qlt_irrefl).
  destruct (Qle_bool (1 - rate) a) eqn:E.
  - apply Qle_bool_iff, Qle_Rle in E. rewrite Q2R_minus, Q2R_1 in E.
    destruct (Rle_dec (1 - Q2R rate) (Q2R a)); [|lra].
    rewrite Q2R_mult, H, Q2R_div, Q2R_plus, Q2R_minus, Q2R_1 by auto. reflexivity.
  - assert (L : (a < 1 - rate)%Q).
    { apply Qnot_le_lt. intros L. apply Qle_bool_iff in L. congruence. }
    apply Qlt_Rlt in L. rewrite Q2R_minus, Q2R_1 in L.
    destruct (Rle_dec (1 - Q2R rate) (Q2R a)); [lra|]. rewrite Q2R_minus, Q2R_1. reflexivity.
Qed.

Theorem adding_real rate (h : Q -> Q) (k : R -> R) a :
  (forall b, Q2R (h b) = k (Q2R b)) ->
  Q2R (adding_q rate h a) = adding (Q2R rate) k (Q2R a).
Proof.
  intros H. unfold adding_q, adding.
  assert (C : Q2R (1 - a * (1 - rate)) = 1 - Q2R a * (1 - Q2R rate))
    by (rewrite !Q2R_minus, Q2R_mult, Q2R_minus, Q2R_1; reflexivity).
  destruct (Qle_bool (1 - a * (1 - rate)) 0) eqn:E.
  - apply Qle_bool_iff, Qle_Rle in E. rewrite Q2R_0, C in E.
    destruct (Rlt_dec 0 (1 - Q2R a * (1 - Q2R rate))); [lra|]. apply Q2R_0.
  - assert (L : (0 < 1 - a * (1 - rate))%Q).
    { apply Qnot_le_lt. intros L. apply Qle_bool_iff in L. congruence. }
    assert (N : ~ (1 - a * (1 - rate) == 0)%Q)
      by (intros Z0; rewrite Z0 in L; revert L; apply Qlt_irrefl).
    apply Qlt_Rlt in L. rewrite Q2R_0, C in L.
    destruct (Rlt_dec 0 (1 - Q2R a * (1 - Q2R rate))); [|lra].
    rewrite Q2R_mult, H, Q2R_div, Q2R_mult, C by auto. reflexivity.
Qed.

Lemma power_real q n : Q2R (power q n) = Q2R q ^ n.
Proof. induction n; cbn [power pow]; [apply Q2R_1|]. rewrite Q2R_red, Q2R_mult, IHn. reflexivity. Qed.

Theorem tail_real q j : (0 < q)%Q -> Q2R (tail_q q j) = tail (Q2R q) j.
Proof.
  intros P. assert (N : ~ (1 + q == 0)%Q).
  { intros E. assert (0 < 1 + q)%Q by (apply Qlt_trans with q; [auto|];
      rewrite <- (Qplus_0_l q) at 1; apply Qplus_lt_l; reflexivity).
    rewrite E in H. revert H. apply Qlt_irrefl. }
  unfold tail_q, tail. destruct (0 <=? j)%Z.
  - rewrite Q2R_div, power_real, Q2R_plus, Q2R_1 by auto. reflexivity.
  - rewrite Q2R_minus, Q2R_div, power_real, Q2R_plus, Q2R_1 by auto. reflexivity.
Qed.

(** The threshold that is found keeps its promise, and the one below does not. *)
Theorem threshold_enough q failure fuel k :
  (exists j, (k <= j < k + Z.of_nat fuel)%Z /\ Qle_bool (tail_q q j) failure = true) ->
  Qle_bool (tail_q q (threshold q failure fuel k)) failure = true.
Proof.
  revert k; induction fuel as [|fuel IH]; intros k (j & J & E); [lia|].
  simpl. destruct (Qle_bool (tail_q q k) failure) eqn:F; auto. apply IH. exists j. split; auto.
  assert (j <> k) by congruence. lia.
Qed.

Theorem threshold_least q failure fuel k j :
  (k <= j < threshold q failure fuel k)%Z -> Qle_bool (tail_q q j) failure = false.
Proof.
  revert k; induction fuel as [|fuel IH]; intros k J; simpl in J; [lia|].
  destruct (Qle_bool (tail_q q k) failure) eqn:F; [lia|].
  destruct (Z.eq_dec j k) as [->|]; auto. apply (IH (k + 1)%Z). lia.
Qed.

(** The branch pair is that of the theorems, where the losses tell all or nothing. *)
Definition all_or_nothing (tells : bool) (b : bool) : R := if tells then (if b then 1 else 0) else 1 / 2.
Definition all_or_nothing' (tells : bool) (b : bool) : R := if tells then (if b then 0 else 1) else 1 / 2.

Lemma all_or_nothing_distribution tells :
  distribution answers (all_or_nothing tells) /\ distribution answers (all_or_nothing' tells).
Proof.
  split; (split; [intros b _|]); destruct tells; unfold sum, answers; try destruct b;
    cbn [fold_right all_or_nothing all_or_nothing']; lra.
Qed.

Lemma component_real tells x y a :
  hockey (component tells x y) fst_r snd_r a
  = sum answers (fun b => positive_part
      (Q2R x * all_or_nothing tells b - a * (Q2R y * all_or_nothing' tells b))).
Proof.
  unfold hockey, sum, component, answers, fst_r, snd_r.
  destruct tells; cbn [fold_right fst snd all_or_nothing all_or_nothing'].
  - rewrite !Q2R_0. f_equal; [|f_equal]; f_equal; ring.
  - replace (Q2R x * (1 / 2) - a * (Q2R y * (1 / 2))) with (/ 2 * (Q2R x - a * Q2R y)) by field.
    rewrite positive_part_scale by lra. field.
Qed.

Theorem branch_pair_real q lo n B d d' fallback_tells robust_tells a :
  (0 < q)%Q -> 0 < Q2R q < 1 -> (1 <= n)%nat -> (lo <= B < hi lo n)%Z ->
  Q2R (profile (branch_pair_q q B d d' fallback_tells robust_tells) a)
  = hockey (labelled bool answers)
      (branch_pair Z (window lo n) (law (Q2R q) lo n) (fun s => B <? s)%Z bool
         (all_or_nothing fallback_tells) (all_or_nothing robust_tells) d)
      (branch_pair' Z (window lo n) (law (Q2R q) lo n) (fun s => B <? s)%Z bool
         (all_or_nothing' fallback_tells) (all_or_nothing' robust_tells) d') (Q2R a).
Proof.
  intros P D W I. rewrite profile_real.
  assert (CT : forall e, chance Z (window lo n) (law (Q2R q) lo n) (fun s => B <? s)%Z e true
                         = Q2R (tail_q q (B - e)))
    by (intros; rewrite tail_real by auto; apply chance_of_passing; auto).
  assert (CF : forall e, chance Z (window lo n) (law (Q2R q) lo n) (fun s => B <? s)%Z e false
                         = Q2R (1 - tail_q q (B - e))).
  { intros e. rewrite Q2R_minus, Q2R_1, <- CT. apply (chance_fails (Q2R q) D lo n W B). }
  unfold branch_pair_q. unfold hockey at 1. rewrite sum_app.
  change (hockey (component fallback_tells (1 - tail_q q (B - d)) (1 - tail_q q (B - d')))
            fst_r snd_r (Q2R a)
          + hockey (component robust_tells (tail_q q (B - d)) (tail_q q (B - d')))
            fst_r snd_r (Q2R a)
          = hockey (labelled bool answers)
      (branch_pair Z (window lo n) (law (Q2R q) lo n) (fun s => B <? s)%Z bool
         (all_or_nothing fallback_tells) (all_or_nothing robust_tells) d)
      (branch_pair' Z (window lo n) (law (Q2R q) lo n) (fun s => B <? s)%Z bool
         (all_or_nothing' fallback_tells) (all_or_nothing' robust_tells) d') (Q2R a)).
  rewrite !component_real. unfold hockey, labelled. rewrite sum_product.
  unfold branches, branch_pair, branch_pair'. unfold sum at 3. cbn [fold_right fst snd].
  rewrite !CT, !CF. ring.
Qed.

(** ** Sanity *)

Example profile_of_response : profile (response_q (1 # 3)) 2 == 1 # 4.
Proof. reflexivity. Qed.

(** At q = 1/2 a margin of 0 passes 4 with probability 1/48, and 3 with 1/24. *)
Example a_threshold : threshold (1 # 2) (1 # 40) 100 0 = 4%Z.
Proof. reflexivity. Qed.

Theorem product_real p k a :
  Q2R (profile (product_q p k) a)
  = hockey (list_prod p k) (product fst_r fst_r) (product snd_r snd_r) (Q2R a).
Proof.
  rewrite profile_real. unfold product_q, hockey. induction (list_prod p k) as [|[[x y] [z w]] l IH];
    [reflexivity|].
  cbn [map sum fold_right]. unfold sum in *. cbn [fold_right] in *. rewrite IH. f_equal.
  unfold product, joint, fst_r, snd_r. cbn [fst snd]. rewrite !Q2R_red, !Q2R_mult. reflexivity.
Qed.

Theorem bounded_range_real s t :
  (1 < s)%Q -> (0 <= t)%Q ->
  Q2R (bounded_range_q s t) = bounded_range_profile (Q2R s ^ 2) (Q2R t ^ 2).
Proof.
  intros S T. pose proof (Qlt_Rlt _ _ S) as SR. pose proof (Qle_Rle _ _ T) as TR.
  rewrite Q2R_1 in SR. rewrite Q2R_0 in TR.
  assert (NS : ~ (s == 0)%Q) by (intros E; apply Qeq_eqR in E; rewrite Q2R_0 in E; lra).
  assert (P2 : Q2R (power s 2) = Q2R s ^ 2) by apply power_real.
  assert (Big : 1 < Q2R s ^ 2) by (simpl; nra).
  assert (NP : ~ (power s 2 == 0)%Q) by (intros E; apply Qeq_eqR in E; rewrite P2, Q2R_0 in E; lra).
  assert (D : Q2R (1 - / power s 2) = 1 - / (Q2R s ^ 2))
    by (rewrite Q2R_minus, Q2R_inv, P2, Q2R_1 by auto; reflexivity).
  assert (Small : / (Q2R s ^ 2) < 1) by (rewrite <- Rinv_1; apply Rinv_lt_contravar; lra).
  assert (ND : ~ (1 - / power s 2 == 0)%Q)
    by (intros E; apply Qeq_eqR in E; rewrite D, Q2R_0 in E; lra).
  unfold bounded_range_q, bounded_range_profile.
  rewrite Q2R_div, D, power_real, Q2R_minus, Q2R_div, Q2R_1 by auto.
  replace (sqrt (Q2R t ^ 2 / Q2R s ^ 2)) with (Q2R t / Q2R s); [reflexivity|].
  symmetry. apply sqrt_lem_1.
  - apply Rmult_le_pos; [apply pow_le; auto | left; apply Rinv_0_lt_compat; lra].
  - apply Rmult_le_pos; [auto | left; apply Rinv_0_lt_compat; lra].
  - field. lra.
Qed.

Theorem geometric_real a k : Q2R (geometric_q a k) = geometric (Q2R a) k.
Proof.
  induction k as [|k IH]; [apply Q2R_0|]. cbn [geometric_q geometric].
  rewrite Q2R_red, Q2R_plus, Q2R_mult, Q2R_1, IH. reflexivity.
Qed.

(** An analyst whose next question does not depend on the answers. *)
Fixpoint asking {Answer} (P : Answer -> R) (prices : list Q) : Filter.analyst Answer :=
  match prices with
  | [] => Filter.Stop Answer
  | price :: rest => Filter.Ask Answer P P (Q2R price) (fun _ => asking P rest)
  end.

Theorem admitted_real {Answer} (some : Answer) (P : Answer -> R) prices budget :
  admitted_q prices budget = true <-> Filter.admitted Answer (asking P prices) (Q2R budget).
Proof.
  revert budget; induction prices as [|price rest IH]; intros budget; cbn [admitted_q asking Filter.admitted].
  - rewrite Qle_bool_iff. split; intros H.
    + apply Qle_Rle in H. rewrite Q2R_0 in H. auto.
    + apply Rle_Qle. rewrite Q2R_0. auto.
  - rewrite IH, Q2R_red, Q2R_minus. split; [intros H _; exact H | intros H; exact (H some)].
Qed.

Lemma sum_nth (g : Z -> R) l : sum (seq 0 (length l)) (fun i => g (nth i l 0%Z)) = sum l g.
Proof.
  induction l as [|x l IH]; [reflexivity|]. cbn [length seq]. rewrite <- seq_shift.
  change (g x + sum (map S (seq 0 (length l))) (fun i => g (nth i (x :: l) 0%Z)) = g x + sum l g).
  rewrite sum_map, <- IH. reflexivity.
Qed.

Theorem rho_real sigma changes :
  (0 < sigma)%Q ->
  Q2R (rho_q sigma changes)
  = sum (seq 0 (length changes)) (fun i => IZR (nth i changes 0%Z) ^ 2) / (2 * Q2R sigma ^ 2).
Proof.
  intros P. pose proof (Qlt_Rlt _ _ P) as PR. rewrite Q2R_0 in PR.
  assert (S2 : 0 < Q2R sigma ^ 2) by (apply pow_lt; auto).
  assert (E : Q2R (2 * power sigma 2) = 2 * Q2R sigma ^ 2)
    by (rewrite Q2R_mult, power_real; unfold Q2R at 1; simpl; lra).
  assert (N : ~ (2 * power sigma 2 == 0)%Q) by (intros Z; apply Qeq_eqR in Z; rewrite E, Q2R_0 in Z; lra).
  rewrite (sum_nth (fun c => IZR c ^ 2)).
  induction changes as [|c changes IH]; [cbn; rewrite Q2R_0; field; lra|].
  cbn [rho_q fold_right]. fold (rho_q sigma changes).
  rewrite Q2R_red, Q2R_plus, IH, Q2R_div, E by auto.
  replace (Q2R (inject_Z (c * c))) with (IZR c ^ 2)
    by (unfold Q2R, inject_Z; cbn [Qnum Qden]; rewrite mult_IZR; field).
  unfold sum. cbn [fold_right]. field. lra.
Qed.

Theorem delta_real n d a :
  (2 <= n)%nat -> (0 < d)%Q -> (0 < a)%Q ->
  Q2R (delta_q n d a) = DiscreteGaussian.delta_of (INR n) (ln (Q2R d)) (ln (Q2R a)).
Proof.
  intros O D A. pose proof (Qlt_Rlt _ _ D) as DR. pose proof (Qlt_Rlt _ _ A) as AR.
  rewrite Q2R_0 in DR, AR. set (order := inject_Z (Z.of_nat n)).
  assert (E : Q2R order = INR n)
    by (unfold order, Q2R, inject_Z; cbn [Qnum Qden]; rewrite <- INR_IZR_INZ; field).
  assert (N2 : 2 <= INR n) by (apply (le_INR 2); auto).
  assert (NO : ~ (order == 0)%Q) by (intros Z; apply Qeq_eqR in Z; rewrite E, Q2R_0 in Z; lra).
  assert (NA : ~ (a == 0)%Q) by (intros Z; apply Qeq_eqR in Z; rewrite Q2R_0 in Z; lra).
  unfold delta_q, DiscreteGaussian.delta_of. fold order.
  rewrite Q2R_div, power_real, Q2R_mult, Q2R_div, Q2R_minus, Q2R_inv, E, Q2R_1 by auto.
  replace (INR n - 1) with (INR (n - 1)) by (rewrite minus_INR by lia; simpl; ring).
  assert (I : 0 < 1 - / INR n).
  { assert (/ INR n < / 1) by (apply Rinv_lt_contravar; lra). rewrite Rinv_1 in *. lra. }
  rewrite Rpower_pow by auto.
  replace (exp (INR (n - 1) * (ln (Q2R d) - ln (Q2R a)))) with ((Q2R d / Q2R a) ^ (n - 1)).
  - rewrite <- Rpow_mult_distr. reflexivity.
  - assert (0 < Q2R d / Q2R a) by (apply Rmult_lt_0_compat; [auto|apply Rinv_0_lt_compat; auto]).
    rewrite <- Rpower_pow by auto. unfold Rpower, Rdiv.
    rewrite ln_mult, ln_Rinv by (auto; apply Rinv_0_lt_compat; auto). f_equal.
Qed.
