package openai

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
)

// steering holds the body fields with which other servers let a client choose
// an identity, a peer, a rank or a cache key. Here nobody outside chooses those:
// the fields are dropped, and the request goes on without them.
var steering = []string{
	"bootstrap_host", "bootstrap_port", "bootstrap_room", "cache_salt", "custom_logit_processor", "data_parallel_rank",
	"disagg_prefill_dp_rank", "extra_key", "kv_transfer_params", "lora_path", "priority", "rid", "routed_dp_rank",
	"session_params", "transfer_id", "request_id",
}

// steeringPrefixes holds the families of such fields.
var steeringPrefixes = []string{"bootstrap_", "kv_transfer", "remote_", "disagg_", "x-prefiller", "x-kv-cache", "x-encoder-hosts"}

// steeringHeaders holds the HTTP headers of the same kind, lower case.
var steeringHeaders = []string{
	"x-data-parallel-rank", "x-encoder-hosts-ports", "x-gateway-destination-endpoint",
	"x-gateway-destination-endpoint-served", "x-gateway-destination-endpoint-subset", "x-kv-cache-source-host-port",
	"x-prefiller-host-port", "x-tenant-id",
}

// SteeringHeaders lists the request headers that are dropped and counted, in
// lower case.
func SteeringHeaders() []string { return slices.Clone(steeringHeaders) }

// SteeringOther is the name under which a field of a steering family is reported
// when it is not a listed one, so that what is reported has a bounded number of
// names.
const SteeringOther = "other"

// dropSteering removes the steering fields of a body and returns their names in
// order.
func (o *object) dropSteering() []string {
	var dropped []string
	for name := range o.fields {
		lower := strings.ToLower(name)
		switch {
		case slices.Contains(steering, lower):
			dropped = append(dropped, lower)
		case slices.ContainsFunc(steeringPrefixes, func(p string) bool { return strings.HasPrefix(lower, p) }):
			dropped = append(dropped, SteeringOther)
		default:
			continue
		}
		delete(o.fields, name)
	}
	slices.Sort(dropped)
	return dropped
}

// refusals holds the fields that change what an answer looks like and that
// can't be honoured. A harmless value (absent, null, false, 0, empty, or the one
// named) passes.
var refusals = []struct{ name, harmless string }{
	{"tools", ""}, {"functions", ""}, {"function_call", `"none"`}, {"audio", ""}, {"web_search_options", ""},
	{"prediction", ""}, {"chat_template", ""}, {"chat_template_kwargs", ""}, {"continue_final_message", ""},
	{"guided_json", ""}, {"guided_regex", ""}, {"guided_choice", ""}, {"guided_grammar", ""}, {"structured_outputs", ""},
	{"grammar", ""}, {"json_schema", ""}, {"regex", ""}, {"ebnf", ""}, {"min_tokens", ""}, {"ignore_eos", ""},
	{"stop_token_ids", ""}, {"use_beam_search", ""}, {"echo", ""}, {"suffix", ""}, {"prompt_logprobs", ""},
	{"return_hidden_states", ""}, {"lora", ""},
}

// refuseUnsupported fails on fields whose effect the answer would lack.
func (o *object) refuseUnsupported() {
	for _, r := range refusals {
		raw, ok := o.get(r.name)
		if ok && string(raw) != r.harmless && !isEmpty(raw) {
			o.fail(invalid(CodeUnsupported, r.name, "%s is not supported by this server", r.name))
		}
	}
	o.refuseResponseFormat()
	o.refuseToolChoice()
	o.refuseModalities()
}

func (o *object) refuseResponseFormat() {
	raw, ok := o.get("response_format")
	if !ok {
		return
	}
	format, ok := o.child("response_format", raw)
	if !ok {
		return
	}
	kind, has := format.text("type")
	o.adopt(format)
	if format.err == nil && (!has || kind != "text") {
		o.fail(invalid(CodeUnsupported, "response_format.type", `response_format.type must be "text": structured output is not supported by this server`))
	}
}

func (o *object) refuseToolChoice() {
	raw, ok := o.get("tool_choice")
	if ok && string(raw) != `"none"` && string(raw) != `"auto"` {
		o.fail(invalid(CodeUnsupported, "tool_choice", `tool_choice must be "none" or "auto": tools are not supported by this server`))
	}
}

func (o *object) refuseModalities() {
	items, ok := o.list("modalities")
	if ok && slices.ContainsFunc(items, func(m json.RawMessage) bool { return string(m) != `"text"` }) {
		o.fail(invalid(CodeUnsupported, "modalities", `modalities must be ["text"]`))
	}
}

func isEmpty(raw json.RawMessage) bool {
	var compact bytes.Buffer
	if json.Compact(&compact, raw) != nil {
		return false
	}
	switch compact.String() {
	case "false", "0", "0.0", `""`, "[]", "{}", "null":
		return true
	}
	return false
}
