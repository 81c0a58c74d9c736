(* The transfer as a transition system, without bounds: any number of requests,
   transfers, pages, workers and crashes. docs/PROOF.md relates each transition
   to the code.

   The adversary. A message that was sent may arrive any number of times, in any
   order, or never. A write that was posted leaves its sender any number of times,
   each time with the bytes that the source page holds then, and what has left
   lands any number of times, or never; body and tags of one write land apart. A
   sender that has died goes on sending for ever. Memory starts with old bytes.
   Workers crash at any moment; a kernel runs on until it ends.

   Each condition that a transition waits for has a name, and is asked for only
   where [on] says that it is there. The theorems say which of them suffice; the
   runs in Runs.v show what happens without one. *)

From Coq Require Import Arith.

(* What bytes can be: those that kernels compute for a transfer's page, zeros,
   and anything else. *)
Inductive bytes := Val (x g : nat) | Zero | Old (n : nat).

(* Numbers name transfers (x, y), pages of decode (g), pages of prefill (h), nodes,
   and the nonces of their incarnations. What a transfer is made with: *)
Class World := {
  mine  : nat -> nat -> Prop;  (* x g: page g is granted to x *)
  peer  : nat -> nat;          (* the prefill node that x is asked of *)
  nonce : nat -> nat;          (* the incarnation of it that x is asked of *)
  node  : nat -> nat;          (* the decode node of x *)
  share : nat -> nat -> Prop   (* x y: y may read x's bytes: same tenant, same prefix *)
}.

Inductive guard :=
(* decode: the target machine, its pool, its worker *)
| FreshID | Alloc | DeferRelease | Coverage | FenceFirst | FencePeer | Checks
| KernelStop | Holders | Readers | Tenant | Blank
(* the receiver, where it places the bytes *)
| Gate
(* prefill: the source machine and its worker *)
| Epochs | LowMark | Tombstone | Silence | Drain | LostWrite | SourceHold | SourceKernel
(* what is trusted of transports, workers and nonces *)
| FreshNonce | CrashTears | FenceHolds | Ordered | Reports | Refusals | Complete | Honest.

(* A transfer at decode. Granted is also a transfer whose CLOSED has come before its
   last pages; Stopping is also one whose verification still reads its pages. *)
Inductive dstate := DNone | DGranted | DFencing | DRevoking | DQuarantined | DVerifying | DDecoding | DStopping | DClosed.
(* A transfer at prefill, in the incarnation that runs. *)
Inductive pstate := PNone | PJoining | PActive | PDraining | PClosed.
(* CLOSED of a transfer, as far as it has been said. *)
Inductive closed := Quiet | Failed | Done.
(* What the source was told of a write. *)
Inductive wstate := WNone | WFlying | WOk | WRefused | WLost.

Record st := mk {
  (* decode *)
  dst  : nat -> dstate;
  own  : nat -> nat -> Prop;         (* g x: page g is x's; a page that is nobody's is free *)
  grn  : nat -> nat -> Prop;         (* x g: x took page g for what it generates *)
  rd   : nat -> nat -> nat -> Prop;  (* y g x: y reads page g of x, from the cache *)
  kd   : nat -> Prop;                (* a kernel runs on the pages of x *)
  ver  : nat -> Prop;                (* the pages of x were verified *)
  cont : nat -> bytes;               (* g: body *)
  tag  : nat -> option nat;          (* g: transfer that the tags name *)
  dead : nat -> Prop;                (* no write of x can land any more: its fence, or its link's end *)
  (* prefill *)
  pst   : nat -> pstate;
  inc   : nat -> nat;                (* node: nonce of the incarnation that runs *)
  used  : nat -> nat -> Prop;        (* node, nonce: used by an incarnation *)
  past  : nat -> Prop;               (* below the low mark, or its link is gone at prefill *)
  hold  : nat -> option nat;         (* h: whose source page it is *)
  kw    : nat -> nat -> Prop;        (* x h: a running kernel of x may write h *)
  scont : nat -> bytes;              (* h: body *)
  said  : nat -> closed;
  (* writes *)
  ws   : nat -> nat -> wstate;       (* x g *)
  from : nat -> nat -> nat;          (* x g: source page of the write; means something once it is posted *)
  way  : nat -> nat -> bytes -> Prop;(* x g v: has left with v and may land *)
  lb   : nat -> nat -> Prop;         (* x g: the body landed *)
  lt   : nat -> nat -> Prop          (* x g: the tags landed *)
}.

(* [set_f v s] is s with the field f being v. *)
Definition set_dst v s := mk v (own s) (grn s) (rd s) (kd s) (ver s) (cont s) (tag s) (dead s) (pst s) (inc s) (used s) (past s) (hold s) (kw s) (scont s) (said s) (ws s) (from s) (way s) (lb s) (lt s).
Definition set_own v s := mk (dst s) v (grn s) (rd s) (kd s) (ver s) (cont s) (tag s) (dead s) (pst s) (inc s) (used s) (past s) (hold s) (kw s) (scont s) (said s) (ws s) (from s) (way s) (lb s) (lt s).
Definition set_grn v s := mk (dst s) (own s) v (rd s) (kd s) (ver s) (cont s) (tag s) (dead s) (pst s) (inc s) (used s) (past s) (hold s) (kw s) (scont s) (said s) (ws s) (from s) (way s) (lb s) (lt s).
Definition set_rd v s := mk (dst s) (own s) (grn s) v (kd s) (ver s) (cont s) (tag s) (dead s) (pst s) (inc s) (used s) (past s) (hold s) (kw s) (scont s) (said s) (ws s) (from s) (way s) (lb s) (lt s).
Definition set_kd v s := mk (dst s) (own s) (grn s) (rd s) v (ver s) (cont s) (tag s) (dead s) (pst s) (inc s) (used s) (past s) (hold s) (kw s) (scont s) (said s) (ws s) (from s) (way s) (lb s) (lt s).
Definition set_ver v s := mk (dst s) (own s) (grn s) (rd s) (kd s) v (cont s) (tag s) (dead s) (pst s) (inc s) (used s) (past s) (hold s) (kw s) (scont s) (said s) (ws s) (from s) (way s) (lb s) (lt s).
Definition set_cont v s := mk (dst s) (own s) (grn s) (rd s) (kd s) (ver s) v (tag s) (dead s) (pst s) (inc s) (used s) (past s) (hold s) (kw s) (scont s) (said s) (ws s) (from s) (way s) (lb s) (lt s).
Definition set_tag v s := mk (dst s) (own s) (grn s) (rd s) (kd s) (ver s) (cont s) v (dead s) (pst s) (inc s) (used s) (past s) (hold s) (kw s) (scont s) (said s) (ws s) (from s) (way s) (lb s) (lt s).
Definition set_dead v s := mk (dst s) (own s) (grn s) (rd s) (kd s) (ver s) (cont s) (tag s) v (pst s) (inc s) (used s) (past s) (hold s) (kw s) (scont s) (said s) (ws s) (from s) (way s) (lb s) (lt s).
Definition set_pst v s := mk (dst s) (own s) (grn s) (rd s) (kd s) (ver s) (cont s) (tag s) (dead s) v (inc s) (used s) (past s) (hold s) (kw s) (scont s) (said s) (ws s) (from s) (way s) (lb s) (lt s).
Definition set_inc v s := mk (dst s) (own s) (grn s) (rd s) (kd s) (ver s) (cont s) (tag s) (dead s) (pst s) v (used s) (past s) (hold s) (kw s) (scont s) (said s) (ws s) (from s) (way s) (lb s) (lt s).
Definition set_used v s := mk (dst s) (own s) (grn s) (rd s) (kd s) (ver s) (cont s) (tag s) (dead s) (pst s) (inc s) v (past s) (hold s) (kw s) (scont s) (said s) (ws s) (from s) (way s) (lb s) (lt s).
Definition set_past v s := mk (dst s) (own s) (grn s) (rd s) (kd s) (ver s) (cont s) (tag s) (dead s) (pst s) (inc s) (used s) v (hold s) (kw s) (scont s) (said s) (ws s) (from s) (way s) (lb s) (lt s).
Definition set_hold v s := mk (dst s) (own s) (grn s) (rd s) (kd s) (ver s) (cont s) (tag s) (dead s) (pst s) (inc s) (used s) (past s) v (kw s) (scont s) (said s) (ws s) (from s) (way s) (lb s) (lt s).
Definition set_kw v s := mk (dst s) (own s) (grn s) (rd s) (kd s) (ver s) (cont s) (tag s) (dead s) (pst s) (inc s) (used s) (past s) (hold s) v (scont s) (said s) (ws s) (from s) (way s) (lb s) (lt s).
Definition set_scont v s := mk (dst s) (own s) (grn s) (rd s) (kd s) (ver s) (cont s) (tag s) (dead s) (pst s) (inc s) (used s) (past s) (hold s) (kw s) v (said s) (ws s) (from s) (way s) (lb s) (lt s).
Definition set_said v s := mk (dst s) (own s) (grn s) (rd s) (kd s) (ver s) (cont s) (tag s) (dead s) (pst s) (inc s) (used s) (past s) (hold s) (kw s) (scont s) v (ws s) (from s) (way s) (lb s) (lt s).
Definition set_ws v s := mk (dst s) (own s) (grn s) (rd s) (kd s) (ver s) (cont s) (tag s) (dead s) (pst s) (inc s) (used s) (past s) (hold s) (kw s) (scont s) (said s) v (from s) (way s) (lb s) (lt s).
Definition set_from v s := mk (dst s) (own s) (grn s) (rd s) (kd s) (ver s) (cont s) (tag s) (dead s) (pst s) (inc s) (used s) (past s) (hold s) (kw s) (scont s) (said s) (ws s) v (way s) (lb s) (lt s).
Definition set_way v s := mk (dst s) (own s) (grn s) (rd s) (kd s) (ver s) (cont s) (tag s) (dead s) (pst s) (inc s) (used s) (past s) (hold s) (kw s) (scont s) (said s) (ws s) (from s) v (lb s) (lt s).
Definition set_lb v s := mk (dst s) (own s) (grn s) (rd s) (kd s) (ver s) (cont s) (tag s) (dead s) (pst s) (inc s) (used s) (past s) (hold s) (kw s) (scont s) (said s) (ws s) (from s) (way s) v (lt s).
Definition set_lt v s := mk (dst s) (own s) (grn s) (rd s) (kd s) (ver s) (cont s) (tag s) (dead s) (pst s) (inc s) (used s) (past s) (hold s) (kw s) (scont s) (said s) (ws s) (from s) (way s) (lb s) v.
Definition upd {A} (f : nat -> A) (i : nat) (v : A) : nat -> A := fun j => if Nat.eqb j i then v else f j.
Definition upd2 {A} (f : nat -> nat -> A) (i k : nat) (v : A) : nat -> nat -> A :=
  fun j l => if Nat.eqb j i then if Nat.eqb l k then v else f j l else f j l.

(* Its pages are held for x. *)
Definition isopen (d : dstate) : Prop := d <> DNone /\ d <> DClosed.
(* x has no remote writer, or CLOSED is here and only the fence is awaited. *)
Definition isgone (d : dstate) : Prop :=
  d = DFencing \/ d = DVerifying \/ d = DDecoding \/ d = DStopping \/ d = DClosed.

Section Steps.
Context {W : World}.
Variable on : guard -> Prop.

(* [s] with x in state d, and x reading nobody's pages any more. *)
Definition leaves (s : st) (x : nat) : st :=
  set_rd (fun y g z => rd s y g z /\ y <> x) (set_dst (upd (dst s) x DClosed) s).

(* CLOSED of x arrives behind the writes that were reported done. *)
Definition behind (s : st) (x : nat) : Prop := on Ordered -> forall g v, ws s x g = WOk -> ~ way s x g v.
(* What was reported done has landed. *)
Definition arrived (s : st) (x : nat) : Prop := on Reports -> forall g, ws s x g = WOk -> lb s x g /\ lt s x g.
(* It names as many pages as were granted. *)
Definition covered (s : st) (x : nat) : Prop :=
  on Coverage -> said s x = Done /\ forall g, mine x g -> ws s x g = WOk.
Definition current (s : st) (x : nat) : Prop := on Epochs -> nonce x = inc s (peer x).
(* The source may say CLOSED. *)
Definition drained (s : st) (x : nat) : Prop :=
  (on Drain -> forall g, ws s x g <> WFlying) /\ (on LostWrite -> forall g, ws s x g <> WLost).
(* A receiver that places asks whose the page is first. *)
Definition gated (s : st) (x g : nat) : Prop :=
  on Gate -> mine x g /\ own s g x /\ (dst s x = DGranted \/ dst s x = DFencing).

Definition closes (s : st) (x : nat) (c : closed) : st :=
  set_said (upd (said s) x c) (set_pst (upd (pst s) x PClosed) s).

Inductive step (s : st) : st -> Prop :=
(* ---- decode *)
| Submit x : (on FreshID -> dst s x = DNone) ->
    (on Alloc -> forall g y, mine x g -> ~ own s g y) ->
    step s (set_own (fun g y => y = x /\ mine x g \/ own s g y) (set_dst (upd (dst s) x DGranted) s))
| Grow x g v : isopen (dst s x) -> (on Alloc -> forall y, ~ own s g y) -> (on Blank -> v = Zero) ->
    step s (set_own (fun k y => k = g /\ y = x \/ own s k y) (set_grn (fun y k => y = x /\ k = g \/ grn s y k)
      (set_cont (upd (cont s) g v) (set_tag (upd (tag s) g (Some x)) s))))
| Pin y g x : dst s y = DGranted -> own s g x -> ver s x -> node x = node y -> (on Tenant -> share x y) ->
    step s (set_rd (fun a k b => a = y /\ k = g /\ b = x \/ rd s a k b) s)
| Revoke x : dst s x = DGranted -> step s (set_dst (upd (dst s) x DRevoking) s)
| Quarantine x : dst s x = DRevoking -> step s (set_dst (upd (dst s) x DQuarantined) s)
| HearClosed x : dst s x = DGranted \/ dst s x = DFencing \/ dst s x = DRevoking \/ dst s x = DQuarantined ->
    (on DeferRelease -> said s x <> Quiet /\ behind s x) -> step s (leaves s x)
| HearDone x : dst s x = DGranted -> covered s x -> behind s x -> arrived s x -> step s (set_dst (upd (dst s) x DFencing) s)
| HearDrained x : dst s x = DGranted -> covered s x -> behind s x -> arrived s x -> step s (set_dst (upd (dst s) x DVerifying) s)
| FenceProved x : dst s x = DFencing -> (on FenceFirst -> dead s x) -> step s (set_dst (upd (dst s) x DVerifying) s)
| DropFenced x : dst s x = DGranted \/ dst s x = DRevoking \/ dst s x = DQuarantined -> (on FencePeer -> dead s x) ->
    step s (leaves s x)
| VerifyOK x : dst s x = DVerifying -> (on Checks -> forall g, mine x g -> cont s g = Val x g /\ tag s g = Some x) ->
    step s (set_ver (fun y => y = x \/ ver s y) (set_dst (upd (dst s) x DDecoding) s))
| VerifyBad x : dst s x = DVerifying -> step s (leaves s x)
| StopVerify x : dst s x = DVerifying -> step s (set_dst (upd (dst s) x DStopping) s)
| StartKernel x : dst s x = DDecoding -> step s (set_kd (fun y => y = x \/ kd s y) s)
| KernelD x g : kd s x -> mine x g \/ grn s x g -> step s (set_cont (upd (cont s) g (Val x g)) s)
| EndKernel x : step s (set_kd (fun y => kd s y /\ y <> x) s)
| Stop x : dst s x = DDecoding -> step s (set_dst (upd (dst s) x DStopping) s)
| Release x : dst s x = DDecoding \/ dst s x = DStopping -> (on KernelStop -> ~ kd s x) -> step s (leaves s x)
| FreePage g x : own s g x -> dst s x = DClosed -> (on Holders -> ~ kd s x) -> (on Readers -> forall y z, ~ rd s y g z) ->
    step s (set_own (fun k y => own s k y /\ ~ (k = g /\ y = x)) s)
| Fence (f : nat -> Prop) : step s (set_dead (fun x => dead s x \/ f x) s)
| CrashD d (f : nat -> Prop) : (on CrashTears -> forall x, node x = d -> dst s x <> DNone -> f x) ->
    step s (set_dead (fun x => dead s x \/ f x) (set_own (fun g x => own s g x /\ node x <> d)
      (set_rd (fun y g x => rd s y g x /\ node y <> d) (set_kd (fun x => kd s x /\ node x <> d)
      (set_dst (fun x => if Nat.eqb (node x) d then match dst s x with DNone => DNone | _ => DClosed end else dst s x) s)))))
(* ---- prefill. GRANT and ABORT of a transfer are there from Submit on. *)
| HearGrant x : dst s x <> DNone -> pst s x = PNone -> current s x -> (on LowMark -> ~ past s x) ->
    step s (set_pst (upd (pst s) x PJoining) s)
| CloseNew x : dst s x <> DNone -> pst s x = PNone -> current s x -> (on LowMark -> ~ past s x) -> step s (closes s x Failed)
| Admit x : pst s x = PJoining -> step s (set_pst (upd (pst s) x PActive) s)
| TakeSource x h : hold s h = None ->
    step s (set_hold (upd (hold s) h (Some x)) (set_kw (fun y k => y = x /\ k = h \/ kw s y k) s))
| KernelP x h v : kw s x h -> step s (set_scont (upd (scont s) h v) s)
| Post x g h : (on Silence -> pst s x = PActive) -> mine x g -> ws s x g = WNone -> hold s h = Some x ->
    (on Complete -> scont s h = Val x g) ->
    step s (set_ws (upd2 (ws s) x g WFlying) (set_from (upd2 (from s) x g h) (set_kw (fun y k => kw s y k /\ ~ (y = x /\ k = h)) s)))
| EndP x : pst s x = PActive -> step s (set_pst (upd (pst s) x PDraining) s)
| CloseFailed x : pst s x = PJoining \/ pst s x = PActive \/ pst s x = PDraining -> drained s x -> step s (closes s x Failed)
| CloseDone x : pst s x = PActive -> drained s x -> step s (closes s x Done)
| CloseSilent x : pst s x = PJoining \/ pst s x = PActive \/ pst s x = PDraining -> step s (set_pst (upd (pst s) x PClosed) s)
| Pass x : step s (set_past (fun y => y = x \/ past s y) s)
| Forget x : pst s x = PClosed -> (on Tombstone -> past s x) -> step s (set_pst (upd (pst s) x PNone) s)
| StopP x : step s (set_kw (fun y h => kw s y h /\ y <> x) s)
| FreeSource x h : hold s h = Some x -> (on SourceHold -> forall g, ws s x g = WFlying -> from s x g <> h) ->
    (on SourceKernel -> ~ kw s x h) -> step s (set_hold (upd (hold s) h None) s)
| CrashP p e : (on FreshNonce -> ~ used s p e) ->
    step s (set_inc (upd (inc s) p e) (set_used (fun q k => q = p /\ k = e \/ used s q k)
      (set_past (fun x => past s x /\ peer x <> p) (set_pst (fun x => if Nat.eqb (peer x) p then PNone else pst s x) s))))
(* ---- writes *)
| Leave x g : ws s x g = WFlying ->
    step s (set_way (fun y k v => y = x /\ k = g /\ v = scont s (from s x g) \/ way s y k v) s)
| LandBody x g v : way s x g v -> (on FenceHolds -> ~ dead s x) -> gated s x g ->
    step s (set_cont (upd (cont s) g v) (set_lb (fun y k => y = x /\ k = g \/ lb s y k) s))
| LandTag x g v : way s x g v -> (on FenceHolds -> ~ dead s x) -> gated s x g ->
    step s (set_tag (upd (tag s) g (Some x)) (set_lt (fun y k => y = x /\ k = g \/ lt s y k) s))
| Vanish x g w : step s (set_way (fun y k v => way s y k v /\ ~ (y = x /\ k = g /\ v = w)) s)
| ReportOK x g : ws s x g = WFlying -> step s (set_ws (upd2 (ws s) x g WOk) s)
| ReportRefused x g : ws s x g = WFlying -> (on Refusals -> forall v, ~ way s x g v) -> step s (set_ws (upd2 (ws s) x g WRefused) s)
| ReportLost x g : ws s x g = WFlying -> step s (set_ws (upd2 (ws s) x g WLost) s)
(* ---- a sender that is not ours *)
| WildWrite x g v : ~ on Honest -> step s (set_way (fun y k w => y = x /\ k = g /\ w = v \/ way s y k w) s)
| WildClosed x c : ~ on Honest -> step s (set_said (upd (said s) x c) s).

Definition init (s : st) : Prop :=
  (forall x, dst s x = DNone) /\ (forall g x, ~ own s g x) /\ (forall x g, ~ grn s x g) /\ (forall y g x, ~ rd s y g x) /\
  (forall x, ~ kd s x) /\ (forall x, ~ ver s x) /\ (forall x, pst s x = PNone) /\ (forall p, used s p (inc s p)) /\
  (forall x h, ~ kw s x h) /\ (forall x, said s x = Quiet) /\ (forall x g, ws s x g = WNone) /\
  (forall x g v, ~ way s x g v) /\ (forall x g, ~ lb s x g) /\ (forall x g, ~ lt s x g).

Inductive reach : st -> Prop :=
| reach_init s : init s -> reach s
| reach_step s t : reach s -> step s t -> reach t.

(* What the theorems say. *)

(* Whatever a decoding sequence reads was computed for it and for that very page, or
   is a page of its own that is still blank, or is a verified page that it may share. *)
Definition NoLeak (s : st) : Prop := forall y g, dst s y = DDecoding ->
  (mine y g -> cont s g = Val y g) /\
  (grn s y g -> cont s g = Val y g \/ cont s g = Zero) /\
  (forall x, rd s y g x -> share x y /\ (cont s g = Val x g \/ grn s x g /\ cont s g = Zero)).

(* A check of the tags at a step never fails without a fault. *)
Definition NoFalseAlarm (s : st) : Prop := forall y g, dst s y = DDecoding ->
  (mine y g \/ grn s y g -> tag s g = Some y) /\ (forall x, rd s y g x -> tag s g = Some x).

(* A page has one owner at most. *)
Definition OneOwner (s : st) : Prop := forall g x y, own s g x -> own s g y -> x = y.

(* A write that can land is to a page that its transfer has. *)
Definition FencedReuse (s : st) : Prop := forall x g v, way s x g v -> ~ dead s x -> own s g x.

(* When CLOSED is out, no write of that transfer is in flight at its sender, and what has
   left was reported done. *)
Definition ClosedMeansClosed (s : st) : Prop := forall x, said s x <> Quiet ->
  forall g, ws s x g <> WFlying /\ forall v, way s x g v -> ws s x g = WOk.

(* A write in flight reads a source page that its transfer has and no kernel writes. *)
Definition SourceHeld (s : st) : Prop := forall x g, ws s x g = WFlying ->
  hold s (from s x g) = Some x /\ scont s (from s x g) = Val x g /\ forall y, ~ kw s y (from s x g).

(* A running kernel writes only pages that its transfer has. *)
Definition NoStaleKernel (s : st) : Prop :=
  (forall x g, kd s x -> mine x g \/ grn s x g -> own s g x) /\ (forall x h, kw s x h -> hold s h = Some x).
End Steps.
