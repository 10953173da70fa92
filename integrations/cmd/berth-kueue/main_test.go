// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	components "github.com/berth-k8s/berth/integrations/deploy"
)

// TestTheManifestsFlags verifies that the program accepts the arguments of its manifest, and that
// its role permits the Lease.
func TestTheManifestsFlags(t *testing.T) {
	args, err := components.Arguments("kueue")
	if err != nil {
		t.Fatal(err)
	}
	flags, o := newFlags()
	if err := flags.Parse(args); err != nil || flags.NArg() > 0 || flags.NFlag() != len(args) {
		t.Errorf("%q are %d flags: %v", args, flags.NFlag(), err)
	}
	if o.election.Namespace != "kube-system" || o.election.Name != "berth-kueue" || !o.election.Elect || o.election.Validate() != nil {
		t.Errorf("the Lease is %+v", o.election)
	}
	if o.berth.TokenFile != "" || o.berth.Insecure {
		t.Errorf("it asks with %+v, want the token of the pod, and TLS", o.berth.Options)
	}
}
