// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simkubelet

import "testing"

func TestImagesThatSayTheyDoNotExist(t *testing.T) {
	for image, want := range map[string]bool{
		"nginx": true, "nginx:1.27": true, "registry.k8s.io/pause:3.10": true, "localhost:5000/a/b": true, "localhost:404/a": true, "": true,
		"non-existent.example.com/nginx": true, "foo:non-existent": false, "localhost/some-image-that-doesnt-exist": false, "webserver:404": false, "r.io:5000/a/b:does-not-exist": false,
		"invalid.registry.k8s.io/invalid/alpine:3.1": false, "registry.invalid/a": false, "invalid/a": false, "invalid": true,
		"nginx:404@sha256:0": false,
	} {
		if got := isPullable(image); got != want {
			t.Errorf("%q: %v, want %v", image, got, want)
		}
	}
}
