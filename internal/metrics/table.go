package metrics

// The gateway's metrics.
const (
	HTTPRequests        Name = "bulkhead_http_requests_total"
	HTTPInFlight        Name = "bulkhead_http_requests_in_flight"
	RequestSeconds      Name = "bulkhead_request_duration_seconds"
	FirstTokenSeconds   Name = "bulkhead_time_to_first_token_seconds"
	TokenGapSeconds     Name = "bulkhead_inter_token_seconds"
	QueueSeconds        Name = "bulkhead_queue_wait_seconds"
	PromptTokens        Name = "bulkhead_prompt_tokens_total"
	OutputTokens        Name = "bulkhead_output_tokens_total"
	Rejections          Name = "bulkhead_rejections_total"
	DroppedFields       Name = "bulkhead_dropped_fields_total"
	ProvenanceFaults    Name = "bulkhead_provenance_faults_total"
	Attempts            Name = "bulkhead_attempts_total"
	Retries             Name = "bulkhead_retries_total"
	Disconnects         Name = "bulkhead_client_disconnects_total"
	SlowClients         Name = "bulkhead_slow_clients_total"
	ClosedConnections   Name = "bulkhead_closed_connections_total"
	ClampedOutputs      Name = "bulkhead_clamped_outputs_total"
	QueueTickets        Name = "bulkhead_queue_tickets"
	RunningTickets      Name = "bulkhead_running_tickets"
	ContextLimit        Name = "bulkhead_context_limit_tokens"
	Ready               Name = "bulkhead_ready"
	Probes              Name = "bulkhead_probes_total"
	LastTransfer        Name = "bulkhead_last_transfer_age_seconds"
	LedgerFailed        Name = "bulkhead_ledger_failed"
	TenantsKnown        Name = "bulkhead_tenants"
	TenantsFailed       Name = "bulkhead_tenants_file_failed"
	QuotaExpired        Name = "bulkhead_quota_expired_total"
	CertificateFailures Name = "bulkhead_certificate_failures_total"
)

// What the gateway knows of each worker.
const (
	WorkerUp                  Name = "bulkhead_worker_up"
	WorkerRoutable            Name = "bulkhead_worker_routable"
	WorkerSeenAge             Name = "bulkhead_worker_status_age_seconds"
	WorkerRunning             Name = "bulkhead_worker_running_jobs"
	WorkerWaiting             Name = "bulkhead_worker_waiting_jobs"
	WorkerQueued              Name = "bulkhead_worker_queued_tokens"
	WorkerPages               Name = "bulkhead_worker_pages"
	WorkerLimitTokens         Name = "bulkhead_worker_usable_tokens"
	WorkerPeerUp              Name = "bulkhead_worker_peer_up"
	WorkerHeldPages           Name = "bulkhead_worker_held_pages"
	WorkerRefusedPages        Name = "bulkhead_worker_refused_pages_total"
	WorkerCertificateFailures Name = "bulkhead_worker_certificate_failures_total"
	WorkerLedger              Name = "bulkhead_worker_ledger_failed"
)

// The names that inference gateways scrape.
const (
	ModelRunning Name = "vllm:num_requests_running"
	ModelWaiting Name = "vllm:num_requests_waiting"
	ModelKVUsage Name = "vllm:kv_cache_usage_perc"
)

func seconds() []float64 {
	return []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600}
}

// Rows is the table.
func Rows() []Row {
	worker := []string{"node", "role"}
	return []Row{
		{HTTPRequests, "1", Counter, "HTTP requests answered, by route and status code.", []string{"route", "code"}, nil},
		{HTTPInFlight, "1", Gauge, "HTTP requests being handled.", nil, nil},
		{RequestSeconds, "seconds", Histogram, "Time from the request to the end of its answer, by how it ended.", []string{"route", "outcome"}, seconds()},
		{FirstTokenSeconds, "seconds", Histogram, "Time from admission to the first token of a choice.", nil, seconds()},
		{TokenGapSeconds, "seconds", Histogram, "Time between two tokens of a choice as they reach the gateway.", nil, []float64{.001, .0025, .005, .01, .02, .03, .05, .075, .1, .2, .5, 1, 5}},
		{QueueSeconds, "seconds", Histogram, "Time that a choice waited for a pair of workers.", nil, seconds()},
		{PromptTokens, "tokens", Counter, "Prompt tokens of finished choices.", nil, nil},
		{OutputTokens, "tokens", Counter, "Output tokens of finished choices.", nil, nil},
		{Rejections, "1", Counter, "Requests refused or failed, by kind of error.", []string{"kind"}, nil},
		{DroppedFields, "1", Counter, "Fields and headers that would steer transfer, cache or identity, dropped from requests.", []string{"field"}, nil},
		{ProvenanceFaults, "1", Counter, "Events of workers that failed a check of where they come from or of what was worked on.", []string{"check"}, nil},
		{Attempts, "1", Counter, "Attempts at choices, by how they ended.", []string{"outcome"}, nil},
		{Retries, "1", Counter, "Choices that were given to a pair again, by reason: a worker was busy or lost.", []string{"reason"}, nil},
		{Disconnects, "1", Counter, "Requests whose client went away before the end.", nil, nil},
		{SlowClients, "1", Counter, "Requests ended because their client read too slowly.", nil, nil},
		{ClosedConnections, "1", Counter, "Connections to the API closed because there were too many, by state: idle ones had asked something, new ones nothing.", []string{"state"}, nil},
		{ClampedOutputs, "1", Counter, "Choices granted less output than asked for, because the context limit left no more.", nil, nil},
		{QueueTickets, "1", Gauge, "Choices that wait for a pair of workers.", nil, nil},
		{RunningTickets, "1", Gauge, "Choices that a pair of workers runs.", nil, nil},
		{ContextLimit, "tokens", Gauge, "The effective context limit: the minimum over the gateway and all workers.", nil, nil},
		{Ready, "1", Gauge, "1 if a prefill-decode pair carried a real transfer lately.", nil, nil},
		{Probes, "1", Counter, "Health probes through a pair, by result.", []string{"result"}, nil},
		{LastTransfer, "seconds", Gauge, "Age of the last transfer that a pair carried and both workers agreed on; -1 before the first.", nil, nil},
		{LedgerFailed, "1", Gauge, "1 while the ledger can't be written, which stops admission.", nil, nil},
		{TenantsKnown, "1", Gauge, "Tenants in the tenants file.", nil, nil},
		{TenantsFailed, "1", Gauge, "1 while the tenants file can't be loaded: the tenants of the last good one stay, and no change to it takes effect.", nil, nil},
		{QuotaExpired, "1", Counter, "Quota reservations that ended by their time instead of being settled.", nil, nil},
		{CertificateFailures, "1", Counter, "New certificates that could not be used, so that the old one stays: they can't be read, aren't valid now or for their use, or no authority has signed them; node is the gateway's among the nodes, public that of the API.", []string{"certificate"}, nil},
		{WorkerUp, "1", Gauge, "1 if the worker is connected and speaks.", worker, nil},
		{WorkerRoutable, "1", Gauge, "1 if requests may be given to the worker.", worker, nil},
		{WorkerSeenAge, "seconds", Gauge, "Age of the worker's last status; -1 before the first.", worker, nil},
		{WorkerRunning, "1", Gauge, "Jobs that the worker runs.", worker, nil},
		{WorkerWaiting, "1", Gauge, "Jobs that wait at the worker.", worker, nil},
		{WorkerQueued, "tokens", Gauge, "Prompt tokens that the worker has not computed yet.", worker, nil},
		{WorkerPages, "pages", Gauge, "Pages of the worker's pool, by state: pool, usable, reserved, free, quarantined.", []string{"node", "role", "state"}, nil},
		{WorkerLimitTokens, "tokens", Gauge, "Longest sequence that the worker can hold now.", worker, nil},
		{WorkerPeerUp, "1", Gauge, "1 if the worker has a transfer link to the peer.", []string{"node", "role", "peer"}, nil},
		{WorkerHeldPages, "pages", Gauge, "Pages that this gateway's running requests hold at the worker.", worker, nil},
		{WorkerLedger, "1", Gauge, "1 while the worker's ledger can't be written: it takes no requests.", worker, nil},
		{WorkerRefusedPages, "pages", Counter, "Pages that the decode worker's gate refused, by reason; transfer_ended and cut follow a request or a link that ended, all others are faults.", []string{"node", "role", "reason"}, nil},
		{WorkerCertificateFailures, "1", Counter, "New certificates that the worker could not use, so that its old one stays.", worker, nil},
		{ModelRunning, "1", Gauge, "Requests running, under the name that inference gateways read.", []string{"model_name"}, nil},
		{ModelWaiting, "1", Gauge, "Requests waiting, under the name that inference gateways read.", []string{"model_name"}, nil},
		{ModelKVUsage, "1", Gauge, "Share of decode's usable pages that are in use, 0 to 1, under the name that inference gateways read.", []string{"model_name"}, nil},
	}
}
