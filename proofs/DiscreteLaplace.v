(** Discrete Laplace noise on all whole numbers: no window. *)

From Coq Require Import Reals ZArith List Lra Lia Bool FinFun.
From Prudent Require Import Finite Infinite Geometric.
Import ListNotations.
Open Scope R_scope.

(** The sum of q^|x| over -b..b. *)
Definition around (b : nat) : list Z := map (fun i => - Z.of_nat b + Z.of_nat i)%Z (seq 0 (2 * b + 1)).

Lemma in_around b x : (Z.abs x <= Z.of_nat b)%Z -> In x (around b).
Proof.
  intros B. apply in_map_iff. exists (Z.to_nat (x + Z.of_nat b)). split; [lia|]. apply in_seq. lia.
Qed.

Lemma geometric_around q b : 0 < q < 1 -> sum (around b) (point q) = 1 - 2 * tail q (Z.of_nat b).
Proof.
  intros D. set (at_ := fun i => (- Z.of_nat b + Z.of_nat i)%Z).
  assert (T : forall m i, sum (map at_ (seq i m)) (point q)
                          = tail q (at_ i - 1) - tail q (at_ (i + m)%nat - 1)).
  { induction m as [|m IH]; intros i.
    - replace (i + 0)%nat with i by lia. simpl. ring.
    - cbn [seq map]. unfold sum in *. cbn [fold_right]. rewrite IH.
      rewrite <- tail_difference by auto.
      replace (at_ (S i) - 1)%Z with (at_ i) by (unfold at_; lia).
      replace (S i + m)%nat with (i + S m)%nat by lia. ring. }
  unfold around. fold at_. rewrite T.
  replace (at_ (0 + (2 * b + 1))%nat - 1)%Z with (Z.of_nat b) by (unfold at_; lia).
  replace (at_ 0%nat - 1)%Z with (- Z.of_nat b - 1)%Z by (unfold at_; lia).
  pose proof (tail_symmetric q (Z.of_nat b)). lra.
Qed.

Lemma geometric_at_most q : 0 < q < 1 -> at_most (point q) 1.
Proof.
  intros D l N.
  assert (W : exists b, forall x, In x l -> (Z.abs x <= Z.of_nat b)%Z).
  { clear N. induction l as [|x l (b & B)]; [exists 0%nat; easy|].
    exists (Nat.max (Z.to_nat (Z.abs x)) b). intros y [->|Y]; [lia|]. specialize (B y Y). lia. }
  destruct W as (b & W). apply Rle_trans with (sum (around b) (point q)).
  - apply sum_incl; auto.
    + intros x. left. apply point_positive; auto.
    + intros x X. apply in_around, W, X.
  - rewrite geometric_around by auto. pose proof (tail_positive q D (Z.of_nat b)). lra.
Qed.

Definition laplace (q : R) (m x : Z) : R := point q (x - m).

Theorem laplace_law q m : 0 < q < 1 -> positive_law (laplace q m).
Proof.
  intros D. split; [intros x; apply point_positive; auto|].
  apply (total_renamed (fun x => x - m)%Z (fun x => x + m)%Z (point q)); try (intros; lia).
  split; [apply geometric_at_most; auto|]. intros b B.
  apply Rnot_lt_le. intros L.
  destruct (pow_lt_1_zero q ltac:(rewrite Rabs_pos_eq; lra) ((1 - b) / 2) ltac:(lra)) as (n & N).
  specialize (N n (le_n n)). rewrite Rabs_pos_eq in N by (apply pow_le; lra).
  assert (Dn : NoDup (around n)).
  { apply Injective_map_NoDup; [|apply seq_NoDup]. intros i j E. lia. }
  specialize (B _ Dn). rewrite geometric_around in B by auto.
  unfold tail in B. destruct (Z.leb_spec 0 (Z.of_nat n)); [|lia].
  replace (Z.to_nat (Z.of_nat n + 1)) with (S n) in B by lia.
  pose proof (power_positive q D n). simpl in B.
  assert (I : q * q ^ n / (1 + q) <= q ^ n).
  { apply Rmult_le_reg_r with (1 + q); [lra|]. unfold Rdiv. rewrite Rmult_assoc, Rinv_l by lra. nra. }
  lra.
Qed.

Lemma laplace_shift q m m' x : 0 < q < 1 ->
  q ^ Z.to_nat (Z.abs (m - m')) * laplace q m x <= laplace q m' x.
Proof.
  intros D. unfold laplace, point.
  assert (0 <= (1 - q) / (1 + q)) by (left; apply Rmult_lt_0_compat; [lra|apply Rinv_0_lt_compat; lra]).
  replace (q ^ Z.to_nat (Z.abs (m - m')) * ((1 - q) / (1 + q) * q ^ Z.to_nat (Z.abs (x - m))))
    with ((1 - q) / (1 + q) * (q ^ Z.to_nat (Z.abs (m - m')) * q ^ Z.to_nat (Z.abs (x - m)))) by ring.
  apply Rmult_le_compat_l; auto. rewrite <- pow_add.
  set (k := Z.to_nat (Z.abs (x - m'))).
  replace (Z.to_nat (Z.abs (m - m')) + Z.to_nat (Z.abs (x - m)))%nat
    with (k + (Z.to_nat (Z.abs (m - m')) + Z.to_nat (Z.abs (x - m)) - k))%nat by (unfold k; lia).
  rewrite pow_add. pose proof (power_positive q D k).
  pose proof (power_at_most_one q D (Z.to_nat (Z.abs (m - m')) + Z.to_nat (Z.abs (x - m)) - k)). nra.
Qed.

(** A change of at most k is k/b-DP: q^k = e^(-k/b). *)
Theorem laplace_mechanism q m m' k x : 0 < q < 1 -> (Z.abs (m - m') <= Z.of_nat k)%Z ->
  laplace q m x <= / q ^ k * laplace q m' x.
Proof.
  intros D B. pose proof (power_positive q D k) as P.
  apply Rmult_le_reg_l with (q ^ k); auto. rewrite <- Rmult_assoc, Rinv_r, Rmult_1_l by lra.
  eapply Rle_trans; [|apply (laplace_shift q m m' x D)].
  apply Rmult_le_compat_r; [apply Rlt_le, point_positive; auto|].
  replace k with (Z.to_nat (Z.abs (m - m')) + (k - Z.to_nat (Z.abs (m - m'))))%nat by lia.
  rewrite pow_add. pose proof (power_positive q D (Z.to_nat (Z.abs (m - m')))).
  pose proof (power_at_most_one q D (k - Z.to_nat (Z.abs (m - m')))). nra.
Qed.

(** *** Vectors, with noise in each coordinate *)

Fixpoint vector_law (q : R) (values y : list Z) : R :=
  match values, y with
  | [], [] => 1
  | n :: values', x :: y' => laplace q n x * vector_law q values' y'
  | _, _ => 0
  end.

Lemma laplace_positive q m x : 0 < q < 1 -> 0 < laplace q m x.
Proof. intros D. apply point_positive. auto. Qed.

Lemma vector_law_nonneg q values y : 0 < q < 1 -> 0 <= vector_law q values y.
Proof.
  intros D. revert y; induction values; intros [|x y]; simpl; try lra.
  apply Rmult_le_pos; auto. apply Rlt_le, laplace_positive; auto.
Qed.

Theorem vector_law_total q values : 0 < q < 1 -> total (vector_law q values) 1.
Proof.
  intros D. induction values as [|n values IH].
  - apply total_ext with (2 := total_nil). intros [|x y]; reflexivity.
  - rewrite <- (Rmult_1_r 1). apply total_ext with (f := fun y =>
      match y with [] => 0 | x :: y' => laplace q n x * vector_law q values y' end).
    + intros [|x y]; reflexivity.
    + apply total_cons; auto using vector_law_nonneg.
      * intros x. apply Rlt_le, laplace_positive; auto.
      * apply laplace_law; auto.
Qed.

(** The sum of absolute differences. *)
Fixpoint distance (v w : list Z) : nat :=
  match v, w with
  | m :: v', n :: w' => Z.to_nat (Z.abs (m - n)) + distance v' w'
  | _, _ => 0
  end.

(** A change of k in the sum of absolute differences is k/b-DP, whatever the dimension. *)
Theorem laplace_vector q v w y : 0 < q < 1 -> length v = length w ->
  q ^ distance v w * vector_law q v y <= vector_law q w y.
Proof.
  intros D. revert w y; induction v as [|m v IH]; intros [|n w] y E; try easy; [simpl; lra|].
  destruct y as [|x y]; [simpl; lra|]. cbn [distance vector_law]. rewrite pow_add.
  injection E as E. specialize (IH w y E). pose proof (laplace_shift q m n x D) as S.
  pose proof (vector_law_nonneg q v y D). pose proof (power_positive q D (distance v w)).
  pose proof (power_positive q D (Z.to_nat (Z.abs (m - n)))). pose proof (laplace_positive q m x D).
  replace (q ^ Z.to_nat (Z.abs (m - n)) * q ^ distance v w * (laplace q m x * vector_law q v y))
    with (q ^ Z.to_nat (Z.abs (m - n)) * laplace q m x * (q ^ distance v w * vector_law q v y)) by ring.
  apply Rmult_le_compat; auto; apply Rmult_le_pos; lra.
Qed.
