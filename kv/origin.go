package kv

import "fmt"

// Origin says where a token comes from: an attempt at a request, the decode worker's
// start that it was given to, and the token's place. It goes with a sequence through
// the scheduler, the compute and the sampler to the gateway, and each of them holds it
// against its own.
type Origin struct {
	GatewayBoot uint64 // of the gateway that counts the requests
	Request     uint64
	Attempt     uint32
	Epoch       Epoch // of the decode worker
	Index       int   // of the token, >= 0
}

// String names all parts but the gateway.
func (o Origin) String() string {
	return fmt.Sprintf("request %d attempt %d epoch %016x token %d", o.Request, o.Attempt, uint64(o.Epoch), o.Index)
}

// At is the origin of the token with that index of the same attempt.
func (o Origin) At(index int) Origin {
	o.Index = index
	return o
}

// Expect is nil if got is o, and else an error that names both.
func (o Origin) Expect(got Origin) error {
	if got != o {
		return fmt.Errorf("%v of gateway %016x stands where %v of gateway %016x is due", got, got.GatewayBoot, o, o.GatewayBoot)
	}
	return nil
}
