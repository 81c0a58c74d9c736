package gateway

import (
	"context"

	"github.com/bulkhead-kv/bulkhead/internal/cluster"
)

// Workers makes a Cluster of a cluster.Client.
func Workers(client *cluster.Client) Cluster { return workers{client} }

type workers struct{ *cluster.Client }

// Run starts a job on one node.
func (w workers) Run(ctx context.Context, job cluster.Job, node string) (Stream, error) {
	stream, err := w.Client.Run(ctx, job, node)
	if err != nil {
		return nil, err
	}
	return stream, nil
}
