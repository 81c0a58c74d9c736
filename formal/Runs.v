(* Runs of the machine: some in which transfers decode, and one for each guard that ends in
   a leak when that guard is missing, and with it the layer behind it where there is one. *)

From Coq Require Import Arith List.
Import ListNotations.
From Bulkhead Require Import Machine.

(* Transfers 0 and 1 are granted page 0, one after the other; 2 is granted none and may
   read what 0 has. One prefill node, one decode node. *)
#[local] Instance small : World := {
  mine x g := (x = 0 \/ x = 1) /\ g = 0;
  peer _ := 0; nonce _ := 0; node _ := 0;
  share x y := x = 0 /\ y = 2
}.

Definition start : st := {|
  dst _ := DNone; own _ _ := False; grn _ _ := False; rd _ _ _ := False; kd _ := False; ver _ := False;
  cont _ := Old 0; tag _ := None; dead _ := False;
  pst _ := PNone; inc _ := 0; used _ e := e = 0; past _ := False; hold _ := None; kw _ _ := False; scont _ := Old 0; said _ := Quiet;
  ws _ _ := WNone; from _ _ := 0; way _ _ _ := False; lb _ _ := False; lt _ _ := False |}.

Lemma start_reached : forall on, reach on start.
Proof. intro. apply reach_init. unfold init. cbn. intuition. Qed.

(* All guards but these. *)
Definition without (l : list guard) (g : guard) : Prop := ~ In g l.

Ltac split_hyps := repeat match goal with
  | H : _ /\ _ |- _ => destruct H
  | H : _ \/ _ |- _ => destruct H
  | H : exists _, _ |- _ => destruct H
  end; subst.
(* What a transition waits for, in a state that is known. *)
Ltac side := intros; try (match goal with |- ~ without _ _ => intro end);
  try match goal with H : without _ _ |- _ => solve [exfalso; apply H; cbn; tauto] end;
  cbv [covered behind arrived current drained gated isopen] in *; intros;
  try match goal with H : without _ _ |- _ => solve [exfalso; apply H; cbn; tauto] end;
  cbn in *; split_hyps; cbn in *;
  try solve [reflexivity | discriminate | congruence | tauto | intuition (try discriminate; try congruence; auto 6)];
  repeat split; intros;
  try match goal with H : without _ _ |- _ => solve [exfalso; apply H; cbn; tauto] end;
  cbn in *; split_hyps; cbn in *;
  repeat match goal with |- context [Nat.eqb ?a ?b] => destruct (Nat.eqb_spec a b); subst; cbn in *
    | H : context [Nat.eqb ?a ?b] |- _ => destruct (Nat.eqb_spec a b); subst; cbn in * end;
  try solve [intuition (try discriminate; try congruence; auto 6)].

Ltac go k := lazymatch goal with
  | R : reach ?on ?s |- _ =>
    let c := eval cbv beta in (k on s) in
    let R' := fresh in
    eassert (R' : reach on _) by (eapply reach_step; [exact R | eapply c; side]);
    clear R;
    lazymatch type of R' with reach _ ?t =>
      let n := eval lazy beta iota zeta delta [leaves closes upd upd2
        set_dst set_own set_grn set_rd set_kd set_ver set_cont set_tag set_dead set_pst set_inc set_used set_past
        set_hold set_kw set_scont set_said set_ws set_from set_way set_lb set_lt
        dst own grn rd kd ver cont tag dead pst inc used past hold kw scont said ws from way lb lt start] in t in
      change (reach on n) in R' end
  end.

(* x computes page 0 and its write is posted. *)
Ltac posts x h :=
  go (fun o s => HearGrant o s x); go (fun o s => Admit o s x); go (fun o s => TakeSource o s x h);
  go (fun o s => KernelP o s x h (Val x 0)); go (fun o s => Post o s x 0 h).
(* It lands, body first, is reported, and nothing of it is on its way any more. *)
Ltac arrives x v :=
  go (fun o s => Leave o s x 0); go (fun o s => LandBody o s x 0 v); go (fun o s => LandTag o s x 0 v);
  go (fun o s => ReportOK o s x 0); go (fun o s => Vanish o s x 0 v).
(* CLOSED, verification, decoding. *)
Ltac decodes x := go (fun o s => CloseDone o s x); go (fun o s => HearDrained o s x); go (fun o s => VerifyOK o s x).
Ltac whole x h := go (fun o s => Submit o s x); posts x h; arrives x (Val x 0); decodes x.

(* The theorems are about something. With all guards on: a transfer decodes, ends, and its
   page is another's, which decodes and takes a page more; a third is revoked,
   quarantined and fenced. *)
Theorem not_vacuous : exists s, reach (without []) s /\
  dst s 1 = DDecoding /\ own s 0 1 /\ cont s 0 = Val 1 0 /\ tag s 0 = Some 1 /\ grn s 1 7 /\ cont s 7 = Val 1 7 /\
  dst s 0 = DClosed /\ lb s 0 0.
Proof.
  pose proof (start_reached (without [])).
  whole 0 0. go (fun o s => Submit o s 2). go (fun o s => Pin o s 2 0 0). go (fun o s => Stop o s 0). go (fun o s => Release o s 0).
  go (fun o s => Revoke o s 2). go (fun o s => Quarantine o s 2). go (fun o s => Fence o s (fun x => x = 2)).
  go (fun o s => DropFenced o s 2).
  go (fun o s => FreePage o s 0 0). whole 1 1.
  go (fun o s => Grow o s 1 7 Zero). go (fun o s => StartKernel o s 1). go (fun o s => KernelD o s 1 7).
  eexists. split; [eassumption | cbn; intuition discriminate].
Qed.

(* A transfer decodes with a page that another left in the cache. *)
Theorem not_vacuous_shared : exists s, reach (without []) s /\ dst s 2 = DDecoding /\ rd s 2 0 0 /\ cont s 0 = Val 0 0.
Proof.
  pose proof (start_reached (without [])).
  whole 0 0. go (fun o s => Submit o s 2). go (fun o s => Pin o s 2 0 0). go (fun o s => Release o s 0). go (fun o s => HearGrant o s 2).
  go (fun o s => Admit o s 2). decodes 2.
  eexists. split; [eassumption | cbn; intuition discriminate].
Qed.

(* What leaks without what. Writes are one-sided: there is no Gate. *)
Definition leaks (l : list guard) : Prop := exists s, reach (without (Gate :: l)) s /\ ~ NoLeak s.

Ltac start_ := match goal with |- leaks ?l => pose proof (start_reached (without (Gate :: l))) end.
(* Sequence y decodes and reads page 0, which is not its own. *)
Ltac leak y := eexists; split; [eassumption | let L := fresh in let K := fresh in intro L; destruct (L y 0 ltac:(reflexivity)) as (K & _);
  specialize (K ltac:(cbn; auto)); cbn in K; discriminate].
Ltac leak_shared := eexists; split; [eassumption | let L := fresh in let K := fresh in intro L; destruct (L 2 0 ltac:(reflexivity)) as (_ & _ & K);
  specialize (K 0 ltac:(cbn; intuition discriminate)); cbn in K; intuition discriminate].
(* A write of 0 is posted and has left. *)
Ltac posted := go (fun o s => Submit o s 0); posts 0 0; go (fun o s => Leave o s 0 0).
(* The page that 0 gave up becomes 1's, who decodes; then the write of 0 lands. *)
Ltac late := go (fun o s => FreePage o s 0 0); whole 1 1; go (fun o s => LandBody o s 0 0 (Val 0 0)); leak 1.
Ltac closed_late := go (fun o s => HearClosed o s 0); late.

(* Pages are given back before CLOSED. *)
Theorem leak_DeferRelease : leaks [DeferRelease].
Proof.
  start_. posted. closed_late.
Qed.

(* Pages are given back before the link is torn. *)
Theorem leak_FencePeer : leaks [FencePeer].
Proof.
  start_. posted. go (fun o s => DropFenced o s 0). late.
Qed.

(* Decode starts before CLOSED: the bytes are there, and come again later. *)
Theorem leak_Coverage : leaks [Coverage].
Proof.
  start_. go (fun o s => Submit o s 0). posts 0 0. go (fun o s => Leave o s 0 0). go (fun o s => LandBody o s 0 0 (Val 0 0)).
  go (fun o s => LandTag o s 0 0 (Val 0 0)).
  go (fun o s => HearDrained o s 0). go (fun o s => VerifyOK o s 0). go (fun o s => Release o s 0). late.
Qed.

(* An incarnation that knows nothing says CLOSED for the one that wrote. *)
Theorem leak_Epochs : leaks [Epochs].
Proof.
  start_. posted. go (fun o s => CrashP o s 0 1). go (fun o s => CloseNew o s 0). closed_late.
Qed.

(* The same with the old nonce. *)
Theorem leak_FreshNonce : leaks [FreshNonce].
Proof.
  start_. posted. go (fun o s => CrashP o s 0 0). go (fun o s => CloseNew o s 0). closed_late.
Qed.

(* A transfer below the low mark is forgotten, and then said to be closed. *)
Theorem leak_LowMark : leaks [LowMark].
Proof.
  start_. posted. go (fun o s => CloseSilent o s 0). go (fun o s => Pass o s 0). go (fun o s => Forget o s 0).
  go (fun o s => CloseNew o s 0). closed_late.
Qed.

(* It is forgotten at once. *)
Theorem leak_Tombstone : leaks [Tombstone].
Proof.
  start_. posted. go (fun o s => CloseSilent o s 0). go (fun o s => Forget o s 0). go (fun o s => CloseNew o s 0). closed_late.
Qed.

(* A write is posted after CLOSED. *)
Theorem leak_Silence : leaks [Silence].
Proof.
  start_. go (fun o s => Submit o s 0). go (fun o s => HearGrant o s 0). go (fun o s => Admit o s 0). go (fun o s => TakeSource o s 0 0).
  go (fun o s => KernelP o s 0 0 (Val 0 0)). go (fun o s => CloseFailed o s 0). go (fun o s => Post o s 0 0 0).
  go (fun o s => Leave o s 0 0). closed_late.
Qed.

(* CLOSED is said while a write is in flight. *)
Theorem leak_Drain : leaks [Drain].
Proof.
  start_. posted. go (fun o s => CloseFailed o s 0). closed_late.
Qed.

(* CLOSED is said although a write was lost. *)
Theorem leak_LostWrite : leaks [LostWrite].
Proof.
  start_. posted. go (fun o s => ReportLost o s 0 0). go (fun o s => CloseFailed o s 0). closed_late.
Qed.

(* A decode worker starts again, old links still write. *)
Theorem leak_CrashTears : leaks [CrashTears].
Proof.
  start_. posted. go (fun o s => CrashD o s 0 (fun _ => False)). whole 1 1. go (fun o s => LandBody o s 0 0 (Val 0 0)). leak 1.
Qed.

(* A fence does not hold. *)
Theorem leak_FenceHolds : leaks [FenceHolds].
Proof.
  start_. posted. go (fun o s => Fence o s (fun x => x = 0)). go (fun o s => DropFenced o s 0). late.
Qed.

(* CLOSED overtakes the second landing of a write that was reported done. *)
Theorem leak_Ordered : leaks [Ordered].
Proof.
  start_. posted. go (fun o s => LandBody o s 0 0 (Val 0 0)). go (fun o s => LandTag o s 0 0 (Val 0 0)). go (fun o s => ReportOK o s 0 0).
  go (fun o s => CloseFailed o s 0). closed_late.
Qed.

(* A write that was reported refused lands. *)
Theorem leak_Refusals : leaks [Refusals].
Proof.
  start_. posted. go (fun o s => ReportRefused o s 0 0). go (fun o s => CloseFailed o s 0). closed_late.
Qed.

(* A sender that is not ours. *)
Theorem leak_Honest : leaks [Honest].
Proof.
  start_. go (fun o s => WildWrite o s 0 0 (Val 0 0)). whole 1 1. go (fun o s => LandBody o s 0 0 (Val 0 0)). leak 1.
Qed.

(* A page is granted twice. *)
Theorem leak_Alloc : leaks [Alloc].
Proof.
  start_. whole 0 0. go (fun o s => Submit o s 1). posts 1 1. go (fun o s => Leave o s 1 0). go (fun o s => LandBody o s 1 0 (Val 1 0)).
  leak 0.
Qed.

(* A page is read by whoever asks. *)
Theorem leak_Tenant : leaks [Tenant].
Proof.
  start_. whole 0 0. go (fun o s => Submit o s 3). go (fun o s => Pin o s 3 0 0). go (fun o s => HearGrant o s 3).
  go (fun o s => Admit o s 3). decodes 3.
  eexists; split; [eassumption | intro L; destruct (L 3 0 ltac:(reflexivity)) as (_ & _ & K); specialize (K 0 ltac:(cbn; intuition discriminate)); cbn in K; intuition discriminate].
Qed.

(* A page is freed under its readers. *)
Theorem leak_Readers : leaks [Readers].
Proof.
  start_. whole 0 0. go (fun o s => Submit o s 2). go (fun o s => Pin o s 2 0 0). go (fun o s => Release o s 0).
  go (fun o s => FreePage o s 0 0).
  go (fun o s => HearGrant o s 2). go (fun o s => Admit o s 2). decodes 2. go (fun o s => Submit o s 1). posts 1 1.
  go (fun o s => Leave o s 1 0).
  go (fun o s => LandBody o s 1 0 (Val 1 0)). leak_shared.
Qed.

(* A page that is grown keeps old bytes. *)
Theorem leak_Blank : leaks [Blank].
Proof.
  start_. whole 0 0. go (fun o s => Grow o s 0 7 (Old 0)).
  eexists; split; [eassumption | intro L; destruct (L 0 7 ltac:(reflexivity)) as (_ & K & _); specialize (K ltac:(cbn; intuition discriminate)); cbn in K; intuition discriminate].
Qed.

(* A kernel runs on in a page that has become another's. *)
Theorem leak_KernelStop_Holders : leaks [KernelStop; Holders].
Proof.
  start_. whole 0 0. go (fun o s => StartKernel o s 0). go (fun o s => Release o s 0). go (fun o s => FreePage o s 0 0). whole 1 1.
  go (fun o s => KernelD o s 0 0). leak 1.
Qed.

(* A second attempt under the first one's id. *)
Theorem leak_FreshID_Checks : leaks [FreshID; Checks].
Proof.
  start_. whole 0 0. go (fun o s => Release o s 0). go (fun o s => FreePage o s 0 0). whole 1 1. go (fun o s => Release o s 1).
  go (fun o s => FreePage o s 0 1).
  go (fun o s => Submit o s 0). go (fun o s => HearDrained o s 0). go (fun o s => VerifyOK o s 0). leak 0.
Qed.

(* A write is reported done and lost, and nobody looks. *)
Theorem leak_Checks_Reports : leaks [Checks; Reports].
Proof.
  start_. go (fun o s => Submit o s 0). posts 0 0. go (fun o s => ReportOK o s 0 0). decodes 0. leak 0.
Qed.

(* A source page is computed over while it is sent. *)
Theorem leak_SourceHold_Checks : leaks [SourceHold; Checks].
Proof.
  start_. go (fun o s => Submit o s 0). posts 0 0. go (fun o s => FreeSource o s 0 0). go (fun o s => Submit o s 2).
  go (fun o s => HearGrant o s 2). go (fun o s => Admit o s 2).
  go (fun o s => TakeSource o s 2 0). go (fun o s => KernelP o s 2 0 (Val 2 5)). arrives 0 (Val 2 5). decodes 0. leak 0.
Qed.

(* A kernel of the last owner computes over it. *)
Theorem leak_SourceKernel_Checks : leaks [SourceKernel; Checks].
Proof.
  start_. go (fun o s => Submit o s 2). go (fun o s => HearGrant o s 2). go (fun o s => Admit o s 2). go (fun o s => TakeSource o s 2 0).
  go (fun o s => FreeSource o s 2 0).
  go (fun o s => Submit o s 0). posts 0 0. go (fun o s => KernelP o s 2 0 (Val 2 5)). arrives 0 (Val 2 5). decodes 0. leak 0.
Qed.

(* A page is sent before it is computed. *)
Theorem leak_Complete_Checks : leaks [Complete; Checks].
Proof.
  start_. go (fun o s => Submit o s 0). go (fun o s => HearGrant o s 0). go (fun o s => Admit o s 0). go (fun o s => TakeSource o s 0 0).
  go (fun o s => Post o s 0 0 0). arrives 0 (Old 0). decodes 0. leak 0.
Qed.

Print Assumptions not_vacuous.
