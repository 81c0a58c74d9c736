(* Tactics of the inductions. *)

From Coq Require Import Arith.
From Bulkhead Require Import Machine.

(* The fields of the state after a step. *)
Ltac open :=
  unfold behind, arrived, covered, current, drained, gated, isopen in *;
  cbn [leaves closes isopen upd upd2
    set_dst set_own set_grn set_rd set_kd set_ver set_cont set_tag set_dead set_pst set_inc set_used set_past
    set_hold set_kw set_scont set_said set_ws set_from set_way set_lb set_lt
    dst own grn rd kd ver cont tag dead pst inc used past hold kw scont said ws from way lb lt];
  unfold upd, upd2.

(* Conditions of guards that are there. *)
Ltac specialize_on := unfold current in *; repeat match goal with
  | K : ?on ?g, H : ?on ?g -> _ |- _ => specialize (H K)
  end.

(* Adds a fact once. *)
Ltac learn H := let T := type of H in lazymatch goal with _ : T |- _ => fail | _ => pose proof H end.

(* Splits what needs no choice. *)
Ltac simple := repeat match goal with
  | H : _ /\ _ |- _ => destruct H
  | H : exists _, _ |- _ => destruct H
  | H : False |- _ => destruct H
  | H : ?x = ?x -> False |- _ => destruct (H eq_refl)
  | H : ?x <> ?x |- _ => destruct (H eq_refl)
  | H : Some _ = Some _ |- _ => injection H as H
  | H : Val _ _ = Val _ _ |- _ => injection H as
  end; subst.

(* Splits what an update did: the new from the old. *)
Ltac news := repeat match goal with
  | |- context [Nat.eqb ?a ?b] => destruct (Nat.eqb_spec a b)
  | H : context [Nat.eqb ?a ?b] |- _ => destruct (Nat.eqb_spec a b)
  | H : _ = _ \/ _ |- _ => destruct H
  | H : (_ = _ /\ _) \/ _ |- _ => destruct H
  | |- context [match dst ?s ?x with DNone => _ | _ => _ end] => destruct (dst s x) eqn:?
  | H : context [match dst ?s ?x with DNone => _ | _ => _ end] |- _ => destruct (dst s x) eqn:?
  end; simple.

Ltac finish := first [assumption | discriminate | congruence | split; finish | left; finish | right; finish].
(* A fact that something said to be impossible. *)
Ltac none := match goal with N : forall _, _ |- _ => exfalso; eapply N; eassumption end.
Ltac ors := repeat match goal with H : _ \/ _ |- _ => destruct H end; simple.
