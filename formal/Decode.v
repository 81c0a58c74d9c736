(* What holds at decode, whatever prefill does: who has which page, and what is in it.

   Two facts are asked of the rest of the system, and each theorem shows them in
   its own way: a write that lands does so in a page that its transfer has and
   that is not yet verified ([lands]), and what is verified is sound ([sound]). *)

From Coq Require Import Arith.
From Bulkhead Require Import Machine Tactics.

Section Decode.
Context {W : World}.
Variable on : guard -> Prop.

Record InvD (s : st) : Prop := {
  ownfun : forall g x y, own s g x -> own s g y -> x = y;
  owner  : forall g x, own s g x -> dst s x <> DNone /\ (mine x g \/ grn s x g);
  keep   : forall x g, isopen (dst s x) -> mine x g \/ grn s x g -> own s g x;
  grown  : forall x g, grn s x g -> dst s x <> DNone /\ ~ mine x g;
  kernel : forall x g, kd s x -> mine x g \/ grn s x g -> own s g x;
  stops  : on KernelStop -> forall x, kd s x -> dst s x = DDecoding \/ dst s x = DStopping;
  vers   : forall x, ver s x -> dst s x = DDecoding \/ dst s x = DStopping \/ dst s x = DClosed;
  runs   : forall x, dst s x = DDecoding -> ver s x;
  page   : forall g x, own s g x -> ver s x -> mine x g -> cont s g = Val x g /\ tag s g = Some x;
  blank  : forall g x, own s g x -> grn s x g -> (cont s g = Val x g \/ cont s g = Zero) /\ tag s g = Some x;
  reader : forall y g x, rd s y g x -> own s g x /\ ver s x /\ share x y /\ node x = node y;
  reads  : forall y g x, rd s y g x -> isopen (dst s y)
}.

Definition lands (s : st) : Prop := forall x g v, way s x g v -> (on FenceHolds -> ~ dead s x) -> gated on s x g ->
  forall y, own s g y -> y = x /\ ~ ver s x /\ mine x g.
Definition sound (s : st) : Prop := forall x, dst s x = DVerifying ->
  (on Checks -> forall g, mine x g -> cont s g = Val x g /\ tag s g = Some x) ->
  forall g, own s g x -> mine x g -> cont s g = Val x g /\ tag s g = Some x.

(* The guards that decode needs by itself. *)
Definition decode_guards : Prop := on FreshID /\ on Alloc /\ on Blank /\ on Tenant /\ on Readers /\ (on KernelStop \/ on Holders).

Lemma decode_init : forall s, init s -> InvD s.
Proof.
  intros s (H1 & H2 & H3 & H4 & H5 & H6 & _).
  constructor; unfold isopen; intros; rewrite ?H1 in *; try solve [exfalso; firstorder congruence].
Qed.

Ltac direct I := first
  [ eapply (ownfun _ I); eassumption | eapply (owner _ I); eassumption | eapply (keep _ I); eassumption | eapply (grown _ I); eassumption
  | eapply (keep _ I); [split; congruence | first [eassumption | left; eassumption | right; eassumption]]
  | eapply (kernel _ I); [eassumption | first [eassumption | left; eassumption | right; eassumption]] | eapply (stops _ I); eassumption | eapply (vers _ I); eassumption | eapply (runs _ I); eassumption
  | eapply (page _ I); eassumption | eapply (blank _ I); eassumption | eapply (reader _ I); eassumption | eapply (reads _ I); eassumption ].

Ltac facts I := repeat match goal with
  | H : own ?s ?g ?x |- _ => learn (owner s I g x H)
  | H : grn ?s ?x ?g |- _ => learn (grown s I x g H)
  | H : ver ?s ?x |- _ => learn (vers s I x H)
  | H : rd ?s ?y ?g ?x |- _ => learn (reader s I y g x H)
  | H : rd ?s ?y ?g ?x |- _ => learn (reads s I y g x H)
  | K : on KernelStop, H : kd ?s ?x |- _ => learn (stops s I K x H)
  end; unfold isopen in *; simple.

Ltac same I := first
  [ exact (ownfun _ I) | exact (owner _ I) | exact (keep _ I) | exact (grown _ I) | exact (kernel _ I) | exact (stops _ I)
  | exact (vers _ I) | exact (runs _ I) | exact (page _ I) | exact (blank _ I) | exact (reader _ I) | exact (reads _ I) ].

(* Two owners are one; what a page of its owner holds. *)
Ltac merge I := repeat match goal with
  | H : own ?s ?g ?x, K : own ?s ?g ?y |- _ => assert_fails (constr_eq x y); pose proof (ownfun s I g x y H K); subst
  | H : own ?s ?g ?x, K : ver ?s ?x, M : mine ?x ?g |- _ => learn (page s I g x H K M)
  | H : own ?s ?g ?x, K : grn ?s ?x ?g |- _ => learn (blank s I g x H K)
  end; simple.

Theorem decode_step : decode_guards -> forall s t, InvD s -> lands s -> sound s -> step on s t -> InvD t.
Proof.
  intros (onFreshID & onAlloc & onBlank & onTenant & onReaders & onKernel) s t I L S T.
  destruct T; specialize_on;
  try match goal with K : kd s ?x, M : mine ?x ?g \/ _ |- _ => pose proof (kernel s I x g K M) end;
  try match goal with K : way s ?x ?g ?v |- _ => pose proof (L x g v K ltac:(assumption) ltac:(assumption)) as Hit end;
  constructor; open; try same I;
  intros; news; try solve [finish]; try solve [direct I];
  facts I; news; simple; try solve [finish]; try solve [direct I];
  try solve [repeat split; first [finish | direct I]]; try solve [right; direct I]; try solve [none].
  (* verification *)
  all: try solve [apply (S x); assumption].
  (* landings *)
  all: try match goal with N : forall y, own ?s ?g y -> _, K : own ?s ?g ?y |- _ =>
    destruct (N y K) as (? & ? & ?); subst; facts I; solve [finish | tauto] end.
  all: clear L S.
  (* a page that is taken was nobody's, so it was not granted to an open transfer *)
  all: try match goal with N : forall y, ~ own ?s ?g y, A : dst ?s ?x <> DNone, B : dst ?s ?x <> DClosed |- _ =>
    assert (~ mine x g) by (intro; apply (N x); eapply keep; [eassumption | split; assumption | left; assumption]) end.
  all: try solve [ors; facts I; try none; merge I; first [finish | direct I | right; direct I]].
  (* FreePage *)
  - split; [apply (keep s I); [split; assumption | assumption] | intros (? & ?); subst; congruence].
  - split; [apply (kernel s I); assumption | intros (? & ?); subst].
    destruct onKernel as [K | K]; [destruct (stops s I K x H3); congruence | exact (H1 K H3)].
  - repeat split; try assumption. intros (? & ?); subst. none.
Qed.
End Decode.
