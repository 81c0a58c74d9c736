// Package transport carries transfer messages and page bytes between two nodes.
package transport
