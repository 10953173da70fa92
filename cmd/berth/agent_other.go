//go:build !linux

package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/berth-k8s/berth/internal/up/supervisor"
)

// errNeedsLinux: an agent turns its machine into a node by means of the kernel.
var errNeedsLinux = errors.New("a machine becomes a node on Linux only")

func newAgentCommand() *cobra.Command {
	return &cobra.Command{
		Use: "agent", GroupID: groupParts, Short: "Make this machine a node (Linux only)", Hidden: true, DisableFlagParsing: true,
		RunE: func(*cobra.Command, []string) error { return errNeedsLinux },
	}
}

// ownNode is none: the machine cannot be a node.
type ownNode struct {
	wanted  bool
	private *struct{}
	berth   selfHosted
}

func (*ownNode) addFlags(*pflag.FlagSet)                              {}
func (*ownNode) checkFlags(*cluster) error                            { return nil }
func (*ownNode) startNode(context.Context, *cluster, *progress) error { return nil }
func (*ownNode) stopNode() error                                      { return nil }
func (*ownNode) supervisorPart(*cluster) (none supervisor.Part)       { return none }
func (*ownNode) controlplaneFlags() []string                          { return nil }
func (*ownNode) welcomeLine(*cluster) string                          { return "" }

func machineName() (string, error) { return "", errNeedsLinux }
