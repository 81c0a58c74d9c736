(* What holds at prefill, on the way, and between the two ends. *)

From Coq Require Import Arith.
From Bulkhead Require Import Machine Tactics Decode.

Section Prefill.
Context {W : World}.
Variable on : guard -> Prop.

Definition over (s : st) (x : nat) : Prop := nonce x <> inc s (peer x).

Record InvP (s : st) : Prop := {
  pstart  : forall x, pst s x <> PNone -> nonce x = inc s (peer x) /\ dst s x <> DNone;
  spent   : forall p, used s p (inc s p);
  wrote   : forall x g, ws s x g <> WNone -> mine x g /\ dst s x <> DNone /\ used s (peer x) (nonce x);
  wrotep  : forall x g, ws s x g <> WNone -> pst s x = PActive \/ pst s x = PDraining \/ pst s x = PClosed \/ past s x \/ over s x;
  fly     : forall x g, ws s x g = WFlying -> hold s (from s x g) = Some x /\ scont s (from s x g) = Val x g;
  still   : forall x g y, ws s x g = WFlying -> ~ kw s y (from s x g);
  kernelp : forall x h, kw s x h -> hold s h = Some x;
  wayp    : forall x g v, way s x g v -> v = Val x g /\ (ws s x g = WFlying \/ ws s x g = WOk \/ ws s x g = WLost);
  promise : forall x g, said s x <> Quiet -> ws s x g <> WFlying /\ ws s x g <> WLost;
  kept    : forall x, said s x <> Quiet -> dst s x <> DNone /\ used s (peer x) (nonce x) /\ (pst s x = PClosed \/ pst s x = PNone /\ (past s x \/ over s x));
  gone    : forall x, isgone (dst s x) -> said s x <> Quiet \/ dead s x;
  quiet   : forall x g v, isgone (dst s x) -> way s x g v -> dead s x;
  heard   : on Reports -> forall x g, dst s x = DFencing \/ dst s x = DVerifying -> mine x g -> lb s x g /\ lt s x g;
  landb   : forall x g, lb s x g -> dst s x <> DNone /\ mine x g /\ (own s g x -> cont s g = Val x g);
  landt   : forall x g, lt s x g -> dst s x <> DNone /\ mine x g /\ (own s g x -> tag s g = Some x)
}.

(* The guards that prefill and the way between need. *)
Definition honest_guards : Prop :=
  on DeferRelease /\ on Coverage /\ on FencePeer /\
  on Epochs /\ on LowMark /\ on Tombstone /\ on Silence /\ on Drain /\ on LostWrite /\ on SourceHold /\ on SourceKernel /\
  on FreshNonce /\ on CrashTears /\ on FenceHolds /\ on Ordered /\ on Refusals /\ on Complete /\ on Honest /\
  (on Checks \/ on Reports).

Lemma prefill_init : forall s, init s -> InvP s.
Proof.
  intros s (H1 & H2 & H3 & H4 & H5 & H6 & H7 & H8 & H9 & H10 & H11 & H12 & H13 & H14).
  constructor; unfold isgone, over; intros; rewrite ?H1, ?H7, ?H10, ?H11 in *; try solve [exfalso; firstorder congruence]; auto.
Qed.

(* A write that can land is to a page that its transfer has, and that is not verified. *)
Lemma fenced : forall s, InvD on s -> InvP s -> forall x g v, way s x g v -> ~ dead s x -> own s g x /\ ~ ver s x /\ mine x g.
Proof.
  intros s D P x g v Y N. destruct (wayp s P x g v Y) as (_ & V).
  assert (U : ws s x g <> WNone) by (destruct V as [V | [V | V]]; congruence).
  destruct (wrote s P x g U) as (M & E & _). assert (G : ~ isgone (dst s x)) by (intro G; apply N; eapply quiet; eauto).
  repeat split; auto.
  - eapply keep; eauto. unfold isgone, isopen in *. split; [auto | intro]. apply G. auto 6.
  - intro V'. apply G. unfold isgone. destruct (vers on s D x V') as [? | [? | ?]]; auto 6.
Qed.

Lemma fenced_lands : on FenceHolds -> forall s, InvD on s -> InvP s -> lands on s.
Proof.
  intros F s D P x g v Y N _ y O. destruct (fenced s D P x g v Y (N F)) as (O' & V & M).
  rewrite (ownfun on s D g y x O O'). auto.
Qed.

Lemma checks_or_reports : on Checks \/ on Reports -> forall s, InvD on s -> InvP s -> sound on s.
Proof.
  intros [C | R] s D P x V H g O M; [auto | ].
  destruct (heard s P R x g (or_intror V) M) as (B & T). split.
  - apply (landb s P x g B); auto.
  - apply (landt s P x g T); auto.
Qed.

Ltac same I := first
  [ exact (pstart _ I) | exact (spent _ I) | exact (wrote _ I) | exact (wrotep _ I) | exact (fly _ I) | exact (still _ I)
  | exact (kernelp _ I) | exact (wayp _ I) | exact (promise _ I) | exact (kept _ I) | exact (gone _ I) | exact (quiet _ I) | exact (heard _ I)
  | exact (landb _ I) | exact (landt _ I) ].
Ltac direct I := first
  [ eapply (pstart _ I); eassumption | eapply (spent _ I) | eapply (wrote _ I); eassumption
  | eapply (wrotep _ I); eassumption | eapply (fly _ I); eassumption | eapply (still _ I); eassumption | eapply (kernelp _ I); eassumption
  | eapply (wayp _ I); eassumption | eapply (promise _ I); eassumption | eapply (kept _ I); eassumption | eapply (gone _ I); eassumption
  | eapply (quiet _ I); eassumption | eapply (heard _ I); eassumption | eapply (landb _ I); eassumption | eapply (landt _ I); eassumption ].

(* What the invariant says about the facts at hand. *)
Ltac facts I := repeat match goal with
  | H : ws ?s ?x ?g <> WNone |- _ => learn (wrote s I x g H)
  | H : ws ?s ?x ?g <> WNone |- _ => learn (wrotep s I x g H)
  | H : ws ?s ?x ?g = WFlying |- _ => learn (fly s I x g H)
  | H : ws ?s ?x ?g = WFlying |- _ => learn (wrote s I x g ltac:(congruence))
  | H : ws ?s ?x ?g = WFlying |- _ => learn (wrotep s I x g ltac:(congruence))
  | H : pst ?s ?x <> PNone |- _ => learn (pstart s I x H)
  | H : pst ?s ?x = PJoining |- _ => learn (pstart s I x ltac:(congruence))
  | H : pst ?s ?x = PActive |- _ => learn (pstart s I x ltac:(congruence))
  | H : pst ?s ?x = PDraining |- _ => learn (pstart s I x ltac:(congruence))
  | H : pst ?s ?x = PClosed |- _ => learn (pstart s I x ltac:(congruence))
  | H : kw ?s ?x ?h |- _ => learn (kernelp s I x h H)
  | H : way ?s ?x ?g ?v |- _ => learn (wayp s I x g v H)
  | H : said ?s ?x <> Quiet |- _ => learn (kept s I x H)
  | H : lb ?s ?x ?g |- _ => learn (landb s I x g H)
  | H : lt ?s ?x ?g |- _ => learn (landt s I x g H)
  end; simple.
Ltac before I := match goal with
  | |- _ \/ dead ?s ?x => apply (gone s I x); unfold isgone; finish
  | |- _ \/ dead ?s ?x \/ _ => destruct (gone s I x); [unfold isgone; finish | finish | finish]
  | H : way ?s ?x ?g ?v |- dead ?s ?x => apply (quiet s I x g v); [unfold isgone; finish | exact H]
  | H : way ?s ?x ?g ?v |- dead ?s ?x \/ _ => left; apply (quiet s I x g v); [unfold isgone; finish | exact H]
  | H : isgone ?d |- _ => is_constructor d; unfold isgone in H; solve [intuition discriminate]
  | R : on Reports, M : mine ?x ?g |- (_ \/ lb ?s ?x ?g) /\ _ => destruct (heard s I R x g ltac:(finish) M); split; finish
  | R : on Reports, M : mine ?x ?g |- _ /\ (_ \/ lt ?s ?x ?g) => destruct (heard s I R x g ltac:(finish) M); split; finish
  | |- lb ?s ?x ?g /\ lt ?s ?x ?g => apply (heard s I ltac:(assumption) x g); finish
  end.

(* No kernel writes what a write reads. *)
Ltac stays I := match goal with
  | |- ~ _ => intro; news; first
    [ congruence
    | match goal with K : kw ?s ?y (from ?s ?x ?g), U : ws ?s ?x ?g = WFlying |- _ => destruct (still s I x g y U K) end
    | match goal with K : kw ?s ?y ?h |- _ => pose proof (kernelp s I y h K); intuition congruence end ]
  | K : kw ?s ?y (from ?s ?x ?g), U : ws ?s ?x ?g = WFlying |- _ => destruct (still s I x g y U K)
  end.

(* Nothing of x is on its way once CLOSED of x is here. *)
Lemma empty : forall s x g v, InvP s -> said s x <> Quiet -> (forall k b, ws s x k = WOk -> ~ way s x k b) -> ~ way s x g v.
Proof.
  intros s x g v I C B Y. destruct (promise s I x g C) as (N & L).
  destruct (wayp s I x g v Y) as (_ & [U | [U | U]]); try contradiction. eapply B; eauto.
Qed.

Theorem prefill_step : decode_guards on -> honest_guards -> forall s t, InvD on s -> InvP s -> step on s t -> InvP t.
Proof.
  intros (onFreshID & onAlloc & _ & _ & _ & _) (onDeferRelease & onCoverage & onFencePeer & onEpochs & onLowMark & onTombstone & onSilence & onDrain & onLostWrite &
    onSourceHold & onSourceKernel & onFreshNonce & onCrashTears & onFenceHolds & onOrdered & onRefusals & onComplete & onHonest & _) s t D I T.
  pose proof (fenced s D I) as F.
  destruct T; specialize_on;
  try match goal with C : said s ?x <> Quiet /\ behind on s ?x |- _ =>
    destruct C as (C & B); unfold behind in B; specialize_on; pose proof (fun g v => empty s x g v I C B) end;
  try match goal with C : covered on s ?x, B : behind on s ?x, R : arrived on s ?x |- _ =>
    destruct (C onCoverage) as (Q & A); pose proof R as All; unfold behind, arrived in *; specialize_on;
    assert (said s x <> Quiet) by congruence; pose proof (fun g v => empty s x g v I ltac:(assumption) B) end;
  try match goal with K : kd s ?x, M : mine ?x ?g \/ _ |- _ => pose proof (kernel on s D x g K M) end;
  try match goal with K : way s ?x ?g ?v, N : ~ dead s ?x |- _ => destruct (F x g v K N) as (? & ? & ?); pose proof (owner on s D g x ltac:(assumption)) end;
  constructor; unfold over; open; try same I.
  all: intros; news; try solve [finish]; try solve [none]; try solve [direct I]; try solve [before I].
  all: facts I; try solve [finish]; try solve [repeat split; intros; finish]; try solve [before I]; try solve [stays I].
  (* an owner more is the same *)
  all: try solve [repeat split; try finish; intros; match goal with O : own ?s ?g ?x, Q : own ?s ?g ?y |- _ =>
    pose proof (ownfun on s D g x y O Q); congruence end].
  (* a page that is taken was nobody's, so nothing of an open transfer is in it *)
  all: try solve [repeat split; try finish; intros [(_ & Q) | Q]; exfalso;
    [subst; match goal with N : forall y, ~ own ?s ?g y |- _ => eapply N; eapply (keep on s D); [split; eassumption | left; eassumption] end | none]].
  (* the links of a decode that crashed are torn *)
  all: try solve [match goal with N : forall y, node y = _ -> _ -> ?f y |- context [?f ?x] => assert (f x) by (apply N; congruence); finish end].
  (* the nonce of a new incarnation was never used *)
  all: try match goal with N : ~ used ?s (peer ?x) ?e, M : used ?s (peer ?x) (nonce ?x) |- _ =>
    assert (nonce x <> e) by (intro; subst; contradiction) end.
  (* that of the incarnation that runs was *)
  all: try match goal with Q : nonce ?x = inc ?s (peer ?x) |- _ =>
    assert (used s (peer x) (nonce x)) by (rewrite Q; apply (spent s I)) end.
  all: clear D F; try solve [intuition congruence].
  - (* HearDone *) apply All, A; assumption.
  - (* HearDrained *) apply All, A; assumption.
  - (* CloseNew *) split; intro U; destruct (wrotep s I x g ltac:(congruence)) as [? | [? | [? | [? | ?]]]]; unfold over in *; congruence.
  - (* Post *) intros (K & N). pose proof (kernelp s I y h K). apply N. split; congruence.
  - (* FreeSource *) exfalso. assert (x0 = x) by congruence. subst. eapply H0; eauto.
  - (* CrashP *) right. direct I.
  - (* Leave *) destruct (gone s I x H0) as [C | C]; [destruct (promise s I x g C); contradiction | exact C].
  - (* ReportLost *) exfalso. destruct (promise s I x g H0). contradiction.
Qed.
End Prefill.
