package transfer

// The events that property tests draw, for the tests that need packages above this one.
var (
	DrawTargetEvent = drawTargetEvent
	DrawSourceEvent = drawSourceEvent
)
