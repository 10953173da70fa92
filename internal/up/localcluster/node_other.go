// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package localcluster

import (
	"context"

	"github.com/spf13/pflag"

	"github.com/berth-k8s/berth/internal/cli/print"
	"github.com/berth-k8s/berth/internal/up/supervisor"
)

// OwnNode is empty: on this platform the machine cannot be a node.
type OwnNode struct {
	wanted  bool
	private *struct{}
	berth   selfHosted
}

func (*OwnNode) AddFlags(*pflag.FlagSet)                                    {}
func (*OwnNode) CheckFlags(*Cluster) error                                  { return nil }
func (*OwnNode) startNode(context.Context, *Cluster, *print.Progress) error { return nil }
func (*OwnNode) stopNode() error                                            { return nil }
func (*OwnNode) supervisorPart(*Cluster) (none supervisor.Part)             { return none }
func (*OwnNode) controlplaneFlags() []string                                { return nil }
func (*OwnNode) welcomeLine(*Cluster) string                                { return "" }
