(** The discrete Gaussian mechanism in zero-concentrated differential privacy.

    Noise x on the whole numbers has a mass proportional to exp(-x^2/(2 sigma^2)).
    Of order alpha > 1, the Renyi divergence of two distributions P and Q is
    ln (sum of P^alpha Q^(1-alpha)) / (alpha - 1). A pair is rho-concentrated if it is
    at most alpha rho, at all orders. *)

From Coq Require Import Reals ZArith List Lra Lia Bool.
From Prudent Require Import Finite Infinite Geometric DiscreteLaplace.
Import ListNotations.
Open Scope R_scope.

Definition moment {A} (alpha : R) (P Q : A -> R) (x : A) : R :=
  Rpower (P x) alpha * Rpower (Q x) (1 - alpha).

(** The least upper bound of the finite sums of moments, which is their sum, is at
    most e^((alpha-1) alpha rho). *)
Definition concentrated {A} (rho : R) (P Q : A -> R) : Prop :=
  forall alpha, 1 < alpha -> at_most (moment alpha P Q) (exp ((alpha - 1) * (alpha * rho))).

Lemma moment_nonneg {A} alpha (P Q : A -> R) x : 0 <= moment alpha P Q x.
Proof. apply Rlt_le, Rmult_lt_0_compat; apply exp_pos. Qed.

(** ** Composition *)

Theorem concentrated_composition {A B} rho rho2 (P Q : A -> R) (P2 Q2 : A -> B -> R) :
  (forall x, 0 < P x) -> (forall x, 0 < Q x) ->
  (forall x y, 0 < P2 x y) -> (forall x y, 0 < Q2 x y) ->
  concentrated rho P Q -> (forall x, concentrated rho2 (P2 x) (Q2 x)) ->
  concentrated (rho + rho2) (joint P P2) (joint Q Q2).
Proof.
  intros HP HQ HP2 HQ2 C C2 alpha O.
  set (e := exp ((alpha - 1) * (alpha * rho2))).
  assert (E : forall x y, moment alpha (joint P P2) (joint Q Q2) (x, y)
                          = moment alpha P Q x * moment alpha (P2 x) (Q2 x) y).
  { intros x y. unfold moment, joint. simpl. rewrite <- !Rpower_mult_distr by auto. ring. }
  apply at_most_pairs with (row := fun x => e * moment alpha P Q x).
  - intros. apply moment_nonneg.
  - intros x l D. rewrite (sum_ext l _ (fun y => moment alpha P Q x * moment alpha (P2 x) (Q2 x) y))
      by (intros; apply E).
    rewrite sum_scale, (Rmult_comm e). apply Rmult_le_compat_l; [apply moment_nonneg|].
    apply C2; auto.
  - intros l D. rewrite sum_scale.
    replace ((alpha - 1) * (alpha * (rho + rho2)))
      with ((alpha - 1) * (alpha * rho2) + (alpha - 1) * (alpha * rho)) by ring.
    rewrite exp_plus. apply Rmult_le_compat_l; [apply Rlt_le, exp_pos|]. apply C; auto.
Qed.

Lemma steps_positive {A} (step : list A -> A -> R) history n t :
  (forall h x, 0 < step h x) -> 0 < steps step history n t.
Proof.
  intros P. revert history t; induction n as [|n IH]; intros history t; simpl; [lra|].
  apply Rmult_lt_0_compat; auto.
Qed.

(** Any number of steps, each chosen in view of all earlier answers; the i-th of
    them is rho_i-concentrated. *)
Theorem concentrated_steps {A} (rho : nat -> R) (P Q : list A -> A -> R) n :
  (forall h x, 0 < P h x) -> (forall h x, 0 < Q h x) ->
  (forall h, concentrated (rho (length h)) (P h) (Q h)) ->
  concentrated (sum (seq 0 n) rho) (steps P [] n) (steps Q [] n).
Proof.
  intros HP HQ C. change 0%nat with (length (@nil A)). generalize (@nil A) as history.
  induction n as [|n IH]; intros history.
  - intros alpha O l D. simpl. replace ((alpha - 1) * (alpha * 0)) with 0 by ring. rewrite exp_0.
    destruct l as [|[] [|[] l]]; simpl; [lra| |].
    + unfold moment. simpl. unfold Rpower. rewrite ln_1, !Rmult_0_r, exp_0. lra.
    + inversion D; subst. exfalso. simpl in *. tauto.
  - apply (concentrated_composition (rho (length history)) (sum (seq (S (length history)) n) rho)); auto.
    + intros x y. apply steps_positive; auto.
    + intros x y. apply steps_positive; auto.
    + intros x. apply (IH (x :: history)).
Qed.

(** ** From rho to epsilon and delta *)

Lemma bernoulli s alpha : 0 < s -> 1 < alpha -> alpha * s <= alpha - 1 + Rpower s alpha.
Proof.
  intros S O. set (y := Rpower s alpha). assert (Y : 0 < y) by apply exp_pos.
  set (m := 1 - / alpha + / alpha * y).
  assert (I : 0 < / alpha < 1).
  { split; [apply Rinv_0_lt_compat; lra|]. rewrite <- Rinv_1. apply Rinv_lt_contravar; lra. }
  assert (M : 0 < m) by (unfold m; assert (0 < / alpha * y) by (apply Rmult_lt_0_compat; lra); lra).
  assert (LN : forall z, 0 < z -> ln z <= z - 1).
  { intros z Z. pose proof (exp_ineq1_le (ln z)) as E. rewrite exp_ln in E by auto. lra. }
  assert (E : ln y = alpha * ln s) by (unfold y, Rpower; apply ln_exp).
  pose proof (LN (y / m) ltac:(apply Rmult_lt_0_compat; [auto|apply Rinv_0_lt_compat; auto])) as L1.
  pose proof (LN (/ m) ltac:(apply Rinv_0_lt_compat; auto)) as L2.
  unfold Rdiv in L1. rewrite ln_mult, ln_Rinv in L1 by (auto; apply Rinv_0_lt_compat; auto).
  rewrite ln_Rinv in L2 by auto.
  assert (Sm : ln s <= ln m).
  { assert (K : / alpha * ln y + - ln m <= / alpha * (y * / m - 1) + (1 - / alpha) * (/ m - 1)).
    { replace (/ alpha * ln y + - ln m)
        with (/ alpha * (ln y + - ln m) + (1 - / alpha) * (- ln m)) by ring.
      apply Rplus_le_compat; apply Rmult_le_compat_l; lra. }
    replace (/ alpha * (y * / m - 1) + (1 - / alpha) * (/ m - 1)) with (m * / m - 1) in K
      by (unfold m at 1; ring).
    rewrite Rinv_r in K by lra. rewrite E in K.
    replace (/ alpha * (alpha * ln s)) with (ln s) in K by (field; lra). lra. }
  assert (s <= m).
  { apply Rnot_lt_le. intros H. apply ln_increasing in H; lra. }
  apply Rle_trans with (alpha * m); [apply Rmult_le_compat_l; lra|].
  right. unfold m. field. lra.
Qed.

(** delta at a = e^epsilon, of a divergence d at the order alpha. *)
Definition delta_of (alpha divergence epsilon : R) : R :=
  exp ((alpha - 1) * (divergence - epsilon)) * Rpower (1 - / alpha) (alpha - 1) / alpha.

Lemma positive_part_of_moment alpha p q epsilon :
  1 < alpha -> 0 < p -> 0 < q ->
  positive_part (p - exp epsilon * q)
  <= delta_of alpha 0 epsilon * (Rpower p alpha * Rpower q (1 - alpha)).
Proof.
  intros O P Q. unfold positive_part. apply Rmax_lub.
  - apply Rmult_le_pos; [|apply Rlt_le, Rmult_lt_0_compat; apply exp_pos].
    unfold delta_of. apply Rlt_le. repeat apply Rmult_lt_0_compat; try apply exp_pos.
    apply Rinv_0_lt_compat. lra.
  - set (a := exp epsilon). assert (A : 0 < a) by apply exp_pos.
    assert (Iq : 0 < / q) by (apply Rinv_0_lt_compat; auto).
    assert (Ia : 0 < / a) by (apply Rinv_0_lt_compat; auto).
    assert (Ib : 0 < 1 - / alpha).
    { assert (/ alpha < / 1) by (apply Rinv_lt_contravar; lra). rewrite Rinv_1 in *. lra. }
    set (s := (1 - / alpha) * (/ a * (p * / q))).
    assert (S : 0 < s) by (repeat apply Rmult_lt_0_compat; auto).
    pose proof (bernoulli s alpha S O) as B.
    assert (K : delta_of alpha 0 epsilon * (Rpower p alpha * Rpower q (1 - alpha))
                = a * q * (Rpower s alpha / (alpha - 1))).
    { assert (E : Rpower s alpha = Rpower (1 - / alpha) (alpha - 1) * (1 - / alpha)
         * exp (- alpha * epsilon) * Rpower p alpha * Rpower q (1 - alpha) * / q).
      { rewrite <- (exp_ln (/ q)) by auto. rewrite <- (exp_ln (1 - / alpha)) at 2 by auto.
        unfold Rpower, s. rewrite <- !exp_plus. f_equal.
        rewrite !ln_mult by (repeat apply Rmult_lt_0_compat; auto).
        unfold a. rewrite <- exp_Ropp, ln_exp. rewrite (ln_Rinv q) by auto. ring. }
      rewrite E. unfold delta_of.
      replace (exp ((alpha - 1) * (0 - epsilon))) with (a * exp (- alpha * epsilon))
        by (unfold a; rewrite <- exp_plus; f_equal; ring).
      field. repeat split; lra. }
    rewrite K. replace (p - a * q) with (a * q * ((alpha * s - (alpha - 1)) / (alpha - 1))).
    + apply Rmult_le_compat_l; [apply Rmult_le_pos; lra|]. unfold Rdiv.
      apply Rmult_le_compat_r; [apply Rlt_le, Rinv_0_lt_compat|]; lra.
    + unfold s. field. repeat split; lra.
Qed.

(** Every order gives a delta at every epsilon: no event's excess is more. *)
Theorem concentrated_to_approximate {A} rho (P Q : A -> R) alpha epsilon :
  (forall x, 0 < P x) -> (forall x, 0 < Q x) -> concentrated rho P Q -> 1 < alpha ->
  at_most (fun x => positive_part (P x - exp epsilon * Q x)) (delta_of alpha (alpha * rho) epsilon).
Proof.
  intros HP HQ C O l D.
  eapply Rle_trans; [apply sum_le; intros; apply (positive_part_of_moment alpha); auto|].
  rewrite sum_scale.
  apply Rle_trans with (delta_of alpha 0 epsilon * exp ((alpha - 1) * (alpha * rho))).
  - apply Rmult_le_compat_l; [|apply C; auto].
    unfold delta_of. apply Rlt_le. repeat apply Rmult_lt_0_compat; try apply exp_pos.
    apply Rinv_0_lt_compat. lra.
  - right. unfold delta_of.
    replace ((alpha - 1) * (alpha * rho - epsilon))
      with ((alpha - 1) * (0 - epsilon) + (alpha - 1) * (alpha * rho)) by ring.
    rewrite exp_plus. field. lra.
Qed.

(** ** The sum of exp(-c (x - t)^2) over all whole numbers x is largest at t = 0 *)

Definition bell (c t : R) (x : Z) : R := exp (- (c * (IZR x - t) ^ 2)).

Lemma bell_positive c t x : 0 < bell c t x.
Proof. apply exp_pos. Qed.

Lemma bell_nonneg c t x : 0 <= bell c t x.
Proof. apply Rlt_le, bell_positive. Qed.

Lemma bell_at_most_near c t : 0 < c -> 0 <= t <= 1 ->
  at_most (bell c t) (exp c * ((1 + exp (- c)) / (1 - exp (- c)))).
Proof.
  intros C T. set (q := exp (- c)).
  assert (D : 0 < q < 1).
  { split; [apply exp_pos|]. unfold q. rewrite <- exp_0. apply exp_increasing. lra. }
  set (k := exp c * ((1 + q) / (1 - q))).
  assert (k0 : 0 < k) by (apply Rmult_lt_0_compat; [apply exp_pos|];
    apply Rmult_lt_0_compat; [lra|apply Rinv_0_lt_compat; lra]).
  apply at_most_le with (g := fun x => k * point q x).
  - intros x. unfold point, k.
    replace (exp c * ((1 + q) / (1 - q)) * ((1 - q) / (1 + q) * q ^ Z.to_nat (Z.abs x)))
      with (exp c * q ^ Z.to_nat (Z.abs x)) by (field; lra).
    unfold q. rewrite <- Rpower_pow by apply exp_pos. unfold Rpower. rewrite ln_exp, <- exp_plus.
    unfold bell.
    assert (K : INR (Z.to_nat (Z.abs x)) - 1 <= (IZR x - t) ^ 2).
    { rewrite INR_IZR_INZ, Z2Nat.id by lia.
      destruct (Z_le_gt_dec 1 x) as [X|X].
      - rewrite Z.abs_eq by lia. apply IZR_le in X.
        destruct (Z_le_gt_dec 2 x) as [Y|Y]; [apply IZR_le in Y; nra|].
        assert (x = 1%Z) by (apply le_IZR in X; lia). subst x. pose proof (pow2_ge_0 (1 - t)). lra.
      - rewrite Z.abs_neq by lia. rewrite opp_IZR. assert (Z : (x <= 0)%Z) by lia.
        destruct (Z.eq_dec x 0) as [->|]; [pose proof (pow2_ge_0 (0 - t)); lra|].
        assert (Y : (x <= -1)%Z) by lia. apply IZR_le in Y. nra. }
    destruct (Req_dec (- (c * (IZR x - t) ^ 2)) (c + INR (Z.to_nat (Z.abs x)) * - c)) as [->|];
      [lra|]. left. apply exp_increasing. nra.
  - intros l N. rewrite sum_scale. pose proof (geometric_at_most q D l N). nra.
Qed.

(** Whole shifts do not matter. *)
Lemma bell_shifted c t (m : Z) s : total (bell c t) s -> total (bell c (t + IZR m)) s.
Proof.
  intros H. apply (total_renamed (fun x => x - m)%Z (fun x => x + m)%Z) in H; try (intros; lia).
  apply (total_ext _ _ _) with (2 := H). intros x. unfold bell. rewrite minus_IZR. f_equal. ring.
Qed.

Lemma bell_mirrored c t s : total (bell c t) s -> total (bell c (- t)) s.
Proof.
  intros H. apply (total_renamed Z.opp Z.opp) in H; try (intros; lia).
  apply (total_ext _ _ _) with (2 := H). intros x. unfold bell. rewrite opp_IZR. f_equal. ring.
Qed.

Lemma bell_total c : 0 < c -> exists b, 0 < b /\ forall t, exists s, total (bell c t) s /\ s <= b.
Proof.
  intros C. set (b := exp c * ((1 + exp (- c)) / (1 - exp (- c)))).
  assert (exp (- c) < 1) by (rewrite <- exp_0; apply exp_increasing; lra).
  pose proof (exp_pos (- c)).
  exists b. split.
  - apply Rmult_lt_0_compat; [apply exp_pos|].
    apply Rmult_lt_0_compat; [lra|apply Rinv_0_lt_compat; lra].
  - intros t. destruct (base_Int_part t) as [L U]. set (m := Int_part t) in *.
    destruct (total_exists (bell c (t - IZR m)) b) as (s & S & B);
      [apply bell_at_most_near; auto; lra|].
    exists s. split; auto. apply (bell_shifted c _ m) in S.
    replace (t - IZR m + IZR m) with t in S by ring. exact S.
Qed.

Lemma total_of_two (f : bool -> R) : (forall b, 0 <= f b) -> total f (f true + f false).
Proof.
  intros N. split.
  - intros l D. eapply Rle_trans; [apply (sum_incl l [true; false]); auto|].
    + intros [] _; simpl; auto.
    + simpl. lra.
  - intros b B. specialize (B [true; false]). simpl in B. rewrite Rplus_0_r in B. apply B.
    repeat constructor; simpl; intuition congruence.
Qed.

(** Two sums, by the sum and the difference of x and y, which are both odd or both even. *)
Lemma bells_product c s t u v p q p' q' :
  total (bell c s) u -> total (bell c t) v ->
  total (bell (2 * c) ((s + t) / 2)) p -> total (bell (2 * c) ((s - t) / 2)) p' ->
  total (bell (2 * c) ((s + t - 1) / 2)) q -> total (bell (2 * c) ((s - t - 1) / 2)) q' ->
  u * v = p * p' + q * q'.
Proof.
  intros U V HP HP' HQ HQ'.
  pose (to := fun adb : (Z * Z) * bool =>
    ((fst (fst adb) + snd (fst adb) + Z.b2z (snd adb))%Z, (fst (fst adb) - snd (fst adb))%Z)).
  pose (back := fun xy : Z * Z => ((Z.div2 (fst xy + snd xy), Z.div2 (fst xy - snd xy)),
                                    Z.odd (fst xy + snd xy))).
  pose (f := fun xy : Z * Z => bell c s (fst xy) * bell c t (snd xy)).
  assert (F : total f (u * v)) by (apply total_product; auto using bell_nonneg).
  apply (total_renamed to back) in F.
  - apply (total_unique (fun x => f (to x))); [exact F|].
    apply total_pairs with (row := fun ad =>
      bell (2 * c) ((s + t - 1) / 2) (fst ad) * bell (2 * c) ((s - t - 1) / 2) (snd ad)
      + bell (2 * c) ((s + t) / 2) (fst ad) * bell (2 * c) ((s - t) / 2) (snd ad)).
    + intros x. apply Rmult_le_pos; apply bell_nonneg.
    + intros [a d]. cbn [fst snd].
      assert (E : forall b, f (to ((a, d), b))
        = bell (2 * c) ((s + t - IZR (Z.b2z b)) / 2) a * bell (2 * c) ((s - t - IZR (Z.b2z b)) / 2) d).
      { intros b. unfold f, to, bell. cbn [fst snd]. rewrite <- !exp_plus. f_equal.
        rewrite !plus_IZR, minus_IZR. field. }
      pose proof (total_of_two (fun b => f (to ((a, d), b)))
                    ltac:(intros; apply Rmult_le_pos; apply bell_nonneg)) as H.
      cbv beta in H. rewrite !E in H. cbn [Z.b2z] in H. rewrite !Rminus_0_r in H. exact H.
    + rewrite (Rplus_comm (p * p')). apply total_plus; try (apply total_product; auto using bell_nonneg);
        intros; cbv beta; apply Rmult_le_pos; apply bell_nonneg.
  - intros [[a d] b]. unfold to, back. cbn [fst snd].
    replace (a + d + Z.b2z b + (a - d))%Z with (Z.b2z b + 2 * a)%Z by ring.
    replace (a + d + Z.b2z b - (a - d))%Z with (Z.b2z b + 2 * d)%Z by ring.
    rewrite Z.odd_add_mul_2. f_equal; [f_equal|destruct b; reflexivity].
    + rewrite Z.div2_div, Z.mul_comm, Z.div_add by lia. destruct b; reflexivity.
    + rewrite Z.div2_div, Z.mul_comm, Z.div_add by lia. destruct b; reflexivity.
  - intros [x y]. unfold to, back. cbn [fst snd].
    pose proof (Z.div2_odd (x + y)) as X. pose proof (Z.div2_odd (x - y)) as Y.
    assert (O : Z.odd (x - y) = Z.odd (x + y)).
    { replace (x - y)%Z with (x + y + 2 * (- y))%Z by ring. apply Z.odd_add_mul_2. }
    rewrite O in Y. f_equal; lia.
Qed.

(** The fourth power at t is at most the cube at 0 times the value at 2t. *)
Lemma bell_doubled c t n u v :
  0 < c -> total (bell c 0) n -> total (bell c t) u -> total (bell c (2 * t)) v ->
  (u * u) * (u * u) <= n * n * (n * v).
Proof.
  intros C N U V. destruct (bell_total (2 * c) ltac:(lra)) as (b & _ & B).
  destruct (B 0) as (p0 & P0 & _). destruct (B (- (1 / 2))) as (q0 & Q0 & _).
  destruct (B t) as (p & P & _). destruct (B (t - 1 / 2)) as (q & Q & _).
  assert (P' : total (bell (2 * c) (- t)) p) by (apply bell_mirrored; auto).
  assert (Q' : total (bell (2 * c) (- t - 1 / 2)) q).
  { apply bell_mirrored in Q. apply (bell_shifted _ _ (-1)) in Q.
    replace (- (t - 1 / 2) + -1) with (- t - 1 / 2) in Q by field. exact Q. }
  assert (at_ : forall x y w, total (bell (2 * c) x) w -> x = y -> total (bell (2 * c) y) w)
    by (intros; subst; auto).
  assert (A1 : u * u = p * p0 + q * q0).
  { apply (bells_product c t t); auto.
    - apply (at_ _ _ _ P). field.
    - apply (at_ _ _ _ P0). field.
    - apply (at_ _ _ _ Q). field.
    - apply (at_ _ _ _ Q0). field. }
  assert (A2 : n * v = p * p + q * q).
  { apply (bells_product c 0 (2 * t)); auto.
    - apply (at_ _ _ _ P). field.
    - apply (at_ _ _ _ P'). field.
    - apply (at_ _ _ _ Q). field.
    - apply (at_ _ _ _ Q'). field. }
  assert (A3 : n * n = p0 * p0 + q0 * q0).
  { apply (bells_product c 0 0); auto.
    - apply (at_ _ _ _ P0). field.
    - apply (at_ _ _ _ P0). field.
    - apply (at_ _ _ _ Q0). field.
    - apply (at_ _ _ _ Q0). field. }
  rewrite A1, A2, A3. pose proof (Rle_0_sqr (p * q0 - q * p0)). unfold Rsqr in *. nra.
Qed.

Theorem bell_largest_at_zero c t n u :
  0 < c -> total (bell c 0) n -> total (bell c t) u -> u <= n.
Proof.
  intros C N U. apply Rnot_lt_le. intros L.
  assert (n0 : 0 < n) by (apply (total_positive _ _ 0%Z (bell_positive c 0 0) N)).
  destruct (bell_total c C) as (b & b0 & B).
  (* The excess at 2t is at least twice that at t, and so on without bound. *)
  assert (G : forall k, exists s w, total (bell c s) w /\ INR (S k) * (u - n) <= w - n).
  { induction k as [|k (s & w & W & H)]; [exists t, u; split; auto; simpl; lra|].
    destruct (B (2 * s)) as (v & V & _). exists (2 * s), v. split; auto.
    pose proof (bell_doubled c s n w v C N W V) as D.
    assert (w1 : n < w).
    { assert (0 < INR (S k) * (u - n)) by (apply Rmult_lt_0_compat; [apply lt_0_INR; lia|lra]). lra. }
    assert (E : w + (w - n) <= v).
    { apply Rmult_le_reg_l with (n * n * n); [repeat apply Rmult_lt_0_compat; auto|].
      apply Rle_trans with ((w * w) * (w * w)); [|lra].
      set (d := w - n) in *. replace w with (n + d) by (unfold d; ring).
      assert (0 < d) by (unfold d; lra).
      assert (0 < n * d) by (apply Rmult_lt_0_compat; auto).
      assert (0 < d * d) by (apply Rmult_lt_0_compat; auto).
      assert (0 < n * n) by (apply Rmult_lt_0_compat; auto).
      replace ((n + d) * (n + d) * ((n + d) * (n + d)))
        with (n * n * n * (n + d + d) + (n * n) * (n * d) * 2 + 6 * ((n * d) * (n * d))
              + 4 * ((n * d) * (d * d)) + (d * d) * (d * d)) by ring.
      assert (0 < (n * n) * (n * d)) by (apply Rmult_lt_0_compat; auto).
      assert (0 < (n * d) * (n * d)) by (apply Rmult_lt_0_compat; auto).
      assert (0 < (n * d) * (d * d)) by (apply Rmult_lt_0_compat; auto).
      assert (0 < (d * d) * (d * d)) by (apply Rmult_lt_0_compat; auto). lra. }
    rewrite S_INR.
    assert (1 <= INR (S k)) by (rewrite S_INR; pose proof (pos_INR k); lra). nra. }
  destruct (archimed (b / (u - n))) as [A _]. set (k := Z.to_nat (up (b / (u - n)))).
  assert (K : b / (u - n) < INR (S k)).
  { rewrite S_INR. unfold k. rewrite INR_IZR_INZ.
    destruct (Z_le_gt_dec 0 (up (b / (u - n)))) as [Z|Z].
    - rewrite Z2Nat.id by auto. lra.
    - assert (0 < b / (u - n)) by (apply Rmult_lt_0_compat; [auto|apply Rinv_0_lt_compat; lra]).
      assert (H0 : (up (b / (u - n)) < 0)%Z) by lia. apply IZR_lt in H0. lra. }
  destruct (G k) as (s & w & W & H). destruct (B s) as (w' & W' & H').
  rewrite (total_unique _ _ _ W W') in H.
  assert (b < INR (S k) * (u - n)).
  { apply Rmult_lt_reg_r with (/ (u - n)); [apply Rinv_0_lt_compat; lra|].
    replace (INR (S k) * (u - n) * / (u - n)) with (INR (S k)) by (field; lra). exact K. }
  lra.
Qed.

(** ** The mechanism *)

Section Mechanism.

Variable sigma : R.
Hypothesis noise : 0 < sigma.
Let c := / (2 * sigma ^ 2).

(** The sum of exp(-x^2/(2 sigma^2)) over the whole numbers x. *)
Variable normaliser : R.
Hypothesis normalises : total (bell c 0) normaliser.

(** The value m with noise. *)
Definition gaussian (m x : Z) : R := bell c (IZR m) x / normaliser.

Lemma precision_positive : 0 < c.
Proof. apply Rinv_0_lt_compat. assert (0 < sigma ^ 2) by (apply pow_lt; auto). lra. Qed.

Lemma normaliser_positive : 0 < normaliser.
Proof. apply (total_positive _ _ 0%Z (bell_positive c 0 0) normalises). Qed.

Theorem gaussian_law m : positive_law (gaussian m).
Proof.
  pose proof normaliser_positive as N. split.
  - intros x. apply Rmult_lt_0_compat; [apply bell_positive|apply Rinv_0_lt_compat; auto].
  - replace 1 with (/ normaliser * normaliser) by (field; lra).
    apply total_ext with (f := fun x => / normaliser * bell c (IZR m) x).
    + intros x. unfold gaussian. field. lra.
    + apply total_scale; [left; apply Rinv_0_lt_compat; auto|].
      rewrite <- (Rplus_0_l (IZR m)). apply bell_shifted. auto.
Qed.

(** Values that differ by d: rho = d^2 / (2 sigma^2). *)
Theorem gaussian_concentrated m m' :
  concentrated (IZR (m - m') ^ 2 / (2 * sigma ^ 2)) (gaussian m) (gaussian m').
Proof.
  intros alpha O. pose proof normaliser_positive as N. pose proof precision_positive as C.
  set (t := alpha * IZR m + (1 - alpha) * IZR m').
  set (e := exp ((alpha - 1) * (alpha * (IZR (m - m') ^ 2 / (2 * sigma ^ 2))))).
  apply at_most_le with (g := fun x => e * (/ normaliser * bell c t x)).
  - intros x. right. unfold moment, gaussian, e, Rdiv, Rpower.
    rewrite !ln_mult by (try apply bell_positive; apply Rinv_0_lt_compat; auto).
    unfold bell. rewrite !ln_exp. rewrite <- (exp_ln (/ normaliser)) at 3
      by (apply Rinv_0_lt_compat; auto).
    rewrite <- !exp_plus. f_equal. unfold t. fold c. rewrite minus_IZR. ring.
  - intros l D. rewrite !sum_scale. rewrite <- (Rmult_1_r e) at 2.
    apply Rmult_le_compat_l; [apply Rlt_le, exp_pos|].
    apply Rmult_le_reg_l with normaliser; auto.
    replace (normaliser * (/ normaliser * sum l (bell c t))) with (sum l (bell c t)) by (field; lra).
    rewrite Rmult_1_r. destruct (bell_total c C) as (b & _ & B). destruct (B t) as (u & U & _).
    apply Rle_trans with u; [apply U; auto|]. apply (bell_largest_at_zero c t); auto.
Qed.

(** Vectors of whole numbers with noise in each coordinate: rho is the sum of the squares
    of the changes, by 2 sigma^2. Steps chosen in view of earlier answers, as well:
    the value of the next one may depend on them, if its change does not. *)
Theorem gaussian_steps (value value' : list Z -> Z) (change : nat -> Z) n :
  (forall h, (Z.abs (value h - value' h) <= change (length h))%Z) ->
  concentrated (sum (seq 0 n) (fun i => IZR (change i) ^ 2) / (2 * sigma ^ 2))
    (steps (fun h => gaussian (value h)) [] n) (steps (fun h => gaussian (value' h)) [] n).
Proof.
  intros H. unfold Rdiv. rewrite <- sum_scale_right.
  apply (concentrated_steps (fun i => IZR (change i) ^ 2 * / (2 * sigma ^ 2))).
  - intros h x. apply gaussian_law.
  - intros h x. apply gaussian_law.
  - intros h alpha O l D. eapply Rle_trans; [apply gaussian_concentrated; auto|].
    assert (K : IZR (value h - value' h) ^ 2 / (2 * sigma ^ 2)
                <= IZR (change (length h)) ^ 2 * / (2 * sigma ^ 2)).
    { apply Rmult_le_compat_r; [apply Rlt_le, precision_positive|]. rewrite !pow_IZR.
      apply IZR_le. specialize (H h). cbn [Z.of_nat Pos.of_succ_nat Pos.succ]. nia. }
    set (r := IZR (value h - value' h) ^ 2 / (2 * sigma ^ 2)) in *.
    set (r' := IZR (change (length h)) ^ 2 * / (2 * sigma ^ 2)) in *.
    assert (M : (alpha - 1) * (alpha * r) <= (alpha - 1) * (alpha * r'))
      by (repeat apply Rmult_le_compat_l; lra).
    destruct M as [M|M]; [left; apply exp_increasing; auto|right; f_equal; auto].
Qed.

End Mechanism.

(** There is such a law. *)
Theorem normaliser_exists sigma : 0 < sigma -> exists n, total (bell (/ (2 * sigma ^ 2)) 0) n.
Proof.
  intros S. destruct (bell_total (/ (2 * sigma ^ 2))) as (b & _ & B).
  - apply Rinv_0_lt_compat. assert (0 < sigma ^ 2) by (apply pow_lt; auto). lra.
  - destruct (B 0) as (n & N & _). eauto.
Qed.

(** Many steps, in epsilon and delta. *)
Theorem gaussian_steps_approximate sigma normaliser value value' (change : nat -> Z) n alpha epsilon :
  0 < sigma -> total (bell (/ (2 * sigma ^ 2)) 0) normaliser ->
  (forall h, (Z.abs (value h - value' h) <= change (length h))%Z) -> 1 < alpha ->
  at_most (fun t => positive_part
      (steps (fun h => gaussian sigma normaliser (value h)) [] n t
       - exp epsilon * steps (fun h => gaussian sigma normaliser (value' h)) [] n t))
    (delta_of alpha (alpha * (sum (seq 0 n) (fun i => IZR (change i) ^ 2) / (2 * sigma ^ 2))) epsilon).
Proof.
  intros S N H O. apply concentrated_to_approximate; auto.
  - intros t. apply steps_positive. intros h x. apply gaussian_law; auto.
  - intros t. apply steps_positive. intros h x. apply gaussian_law; auto.
  - apply gaussian_steps; auto.
Qed.

(** ** Sanity: no smaller rho will do, already at order 2 *)

Example gaussian_is_tight sigma normaliser m m' rho :
  0 < sigma -> total (bell (/ (2 * sigma ^ 2)) 0) normaliser ->
  concentrated rho (gaussian sigma normaliser m) (gaussian sigma normaliser m') ->
  IZR (m - m') ^ 2 / (2 * sigma ^ 2) <= rho.
Proof.
  intros S N C. specialize (C 2 ltac:(lra)).
  pose proof (normaliser_positive sigma normaliser N) as P.
  set (r := IZR (m - m') ^ 2 / (2 * sigma ^ 2)).
  destruct (gaussian_law sigma normaliser N (2 * m - m')) as [_ [_ L]].
  assert (E : at_most (gaussian sigma normaliser (2 * m - m')) (exp (2 * rho - 2 * r))).
  { intros l D. specialize (C l D).
    rewrite (sum_ext l _ (fun x => exp (2 * r) * gaussian sigma normaliser (2 * m - m') x)) in C.
    - rewrite sum_scale in C. apply Rmult_le_reg_l with (exp (2 * r)); [apply exp_pos|].
      rewrite <- exp_plus. replace (2 * r + (2 * rho - 2 * r)) with ((2 - 1) * (2 * rho)) by ring. auto.
    - intros x _. unfold moment, gaussian, r, Rdiv, Rpower.
      rewrite !ln_mult by (try apply bell_positive; apply Rinv_0_lt_compat; auto).
      unfold bell. rewrite !ln_exp. rewrite <- (exp_ln (/ normaliser)) at 3
        by (apply Rinv_0_lt_compat; auto).
      rewrite <- !exp_plus. f_equal. rewrite !minus_IZR, mult_IZR. ring. }
  apply L in E. rewrite <- exp_0 in E.
  apply Rnot_lt_le. intros K. apply Rle_not_lt in E. apply E, exp_increasing. lra.
Qed.
