(* The theorems. *)

From Bulkhead Require Import Machine Tactics Decode Prefill.

(* Our own sender. Nothing here asks a tag or a sum, where what transports report is
   true; where it is not, verified sums stand in for it. *)
Theorem safety : forall (W : World) (on : guard -> Prop), decode_guards on -> honest_guards on ->
  forall s, reach on s ->
    NoLeak s /\ NoFalseAlarm s /\ OneOwner s /\ FencedReuse s /\ ClosedMeansClosed s /\ SourceHeld s /\ NoStaleKernel s.
Proof.
  intros W on GD GH.
  assert (R : forall s, reach on s -> InvD on s /\ InvP on s).
  { intros s H. induction H as [s I | s t H (D & P) T].
    - split; [apply decode_init | apply prefill_init]; exact I.
    - split; [ | eapply prefill_step; eauto].
      unfold honest_guards in GH. eapply decode_step; eauto; [apply fenced_lands | apply checks_or_reports]; tauto. }
  intros s H. destruct (R s H) as (D & P). clear R H. repeat split.
  - intro M. apply (page on s D g y); [eapply keep; eauto | eapply runs; eauto | exact M]. unfold isopen. split; congruence.
  - intro M. apply (blank on s D g y); [eapply keep; eauto | exact M]. unfold isopen. split; congruence.
  - apply (reader on s D y g x); assumption.
  - destruct (reader on s D y g x H0) as (O & V & _). destruct (owner on s D g x O) as (_ & [M | M]).
    + left. apply (page on s D g x O V M).
    + destruct (blank on s D g x O M) as ([B | B] & _); auto.
  - intros [M | M]; [apply (page on s D g y) | apply (blank on s D g y)]; auto; try (eapply runs; eauto);
      eapply keep; eauto; unfold isopen; split; congruence.
  - intros x K. destruct (reader on s D y g x K) as (O & V & _). destruct (owner on s D g x O) as (_ & [M | M]);
      [apply (page on s D g x) | apply (blank on s D g x)]; auto.
  - exact (ownfun on s D).
  - intros x g v Y N. apply (fenced on s D P x g v Y N).
  - apply (promise on s P x g H).
  - intros v Y. destruct (promise on s P x g H). destruct (wayp on s P x g v Y) as (_ & [U | [U | U]]); tauto.
  - apply (fly on s P x g H).
  - apply (fly on s P x g H).
  - intros y K. exact (still on s P x g y H K).
  - intros x g K M. eapply kernel; eauto.
  - exact (kernelp on s P).
Qed.

(* Any sender at all. Where the receiver places the bytes and asks whose a page is, and
   what was placed is verified, decode's own guards are enough: no promise of prefill, no
   fence, no report is trusted, and all of prefill's guards may be missing at once. *)
Theorem receiver_safety : forall (W : World) (on : guard -> Prop), decode_guards on -> on Gate -> on Checks ->
  forall s, reach on s -> NoLeak s /\ NoFalseAlarm s /\ OneOwner s.
Proof.
  intros W on GD G C.
  assert (R : forall s, reach on s -> InvD on s).
  { intros s H. induction H as [s I | s t H D T]; [apply decode_init; exact I | ].
    eapply decode_step; eauto.
    - intros x g v _ _ Q y O. destruct (Q G) as (M & O' & U). rewrite (ownfun on s D g x y O' O) in *.
      repeat split; auto. intro V. destruct (vers on s D y V) as [? | [? | ?]]; intuition congruence.
    - intros x _ Q g _ M. apply Q; assumption. }
  intros s H. specialize (R s H) as D. clear R H. repeat split.
  - intro M. apply (page on s D g y); [eapply keep; eauto | eapply runs; eauto | exact M]. unfold isopen. split; congruence.
  - intro M. apply (blank on s D g y); [eapply keep; eauto | exact M]. unfold isopen. split; congruence.
  - apply (reader on s D y g x); assumption.
  - destruct (reader on s D y g x H0) as (O & V & _). destruct (owner on s D g x O) as (_ & [M | M]).
    + left. apply (page on s D g x O V M).
    + destruct (blank on s D g x O M) as ([B | B] & _); auto.
  - intros [M | M]; [apply (page on s D g y) | apply (blank on s D g y)]; auto; try (eapply runs; eauto);
      eapply keep; eauto; unfold isopen; split; congruence.
  - intros x K. destruct (reader on s D y g x K) as (O & V & _). destruct (owner on s D g x O) as (_ & [M | M]);
      [apply (page on s D g x) | apply (blank on s D g x)]; auto.
  - exact (ownfun on s D).
Qed.

Print Assumptions safety.
Print Assumptions receiver_safety.
