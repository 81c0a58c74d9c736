package transport

import "errors"

var (
	// ErrDown is the error of a call on a link that has ended.
	ErrDown = errors.New("the link is down")
	// ErrEnded is why a link ended whose peer closed it, or whose peer's process ended.
	ErrEnded = errors.New("the peer ended the link")
	// ErrQueueFull is why a link ended whose peer took less than we had to send.
	ErrQueueFull = errors.New("the link's queue is full")
	// ErrSilent is why a link ended whose peer sent nothing, not even a heartbeat.
	ErrSilent = errors.New("the peer is silent")
	// ErrProtocol is why a link ended whose peer sent what no peer of this version sends.
	ErrProtocol = errors.New("the peer broke the protocol")
)
