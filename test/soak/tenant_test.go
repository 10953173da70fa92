// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berth-k8s/berth/test/internal/nightly"
)

// TestShortTenant plays a short version of the campaign of `make soak SOAKFLAGS=--tenant`. It
// verifies that the actions of a user in one namespace neither delay other users' pods nor end a
// process.
func TestShortTenant(t *testing.T) {
	nightly.Only(t)
	o := TenantDefaults()
	o.Bin, o.Dir, o.Nodes, o.Seed = programs(t), filepath.Join(t.TempDir(), "soak"), 12, *seed
	o.For, o.Calm = max(20*time.Second, *rounds), 10*time.Second
	o.Slack = 10 * time.Second // other tests keep cores and disk busy, and etcd waits for the disk
	var out strings.Builder
	o.Out = &out
	r, err := RunTenant(t.Context(), o)
	if err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	r.Print(&out)
	t.Log(&out)
	if len(r.Violations) > 0 {
		t.Errorf("%d promises were broken", len(r.Violations))
	}
	if r.Deeds["create a pod"] < 10 || r.Tenant.pods < 10 {
		t.Errorf("the tenant created %d pods, the witness %d", r.Deeds["create a pod"], r.Tenant.pods)
	}
}
