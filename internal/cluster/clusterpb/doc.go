// Package clusterpb is the wire form of package cluster's messages.
//
// The code is generated with protoc 3.21.12, protoc-gen-go v1.36.12 and
// protoc-gen-go-grpc v1.5.1.
package clusterpb

//go:generate protoc --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative cluster.proto
