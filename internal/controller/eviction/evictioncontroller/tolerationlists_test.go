// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package evictioncontroller

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/admission/evictionguard"
	"github.com/berth-k8s/berth/internal/controller/eviction"
	"github.com/berth-k8s/berth/internal/kube/fakeapi"
)

// TestTolerationsOfDeletedPodsTakeLittleMemory covers a tenant that creates and deletes pods, each
// with other tolerations up to the size of an object.
func TestTolerationsOfDeletedPodsTakeLittleMemory(t *testing.T) {
	var known tolerations
	for pod := range 50 {
		var list []v1.Toleration
		for i := range 5_000 {
			list = append(list, v1.Toleration{Key: fmt.Sprintf("%s.example.com/%d-%d", strings.Repeat("a", 60), pod, i), Operator: v1.TolerationOpExists})
		}
		known.shareList(list)
	}
	bytes := 0
	for key := range known.known {
		bytes += len(key)
	}
	if bytes > 8<<20 {
		t.Errorf("%d MiB are remembered for 50 deleted pods (keys alone), and for %d up to %d MiB", bytes>>20, mostShared, bytes/50*mostShared>>20)
	}
}

type evictionsSeen struct{ body []byte }

func (e *evictionsSeen) RoundTrip(r *http.Request) (*http.Response, error) {
	if strings.HasSuffix(r.URL.Path, "/eviction") {
		e.body, _ = io.ReadAll(r.Body)
	}
	return &http.Response{StatusCode: 201, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader([]byte(`{}`))), Request: r}, nil
}

// TestEvictionsForTaintsAreNotHeld: "An eviction for a NoExecute taint is not held"
// (docs/tasks/guard-evictions.md).
func TestEvictionsForTaintsAreNotHeld(t *testing.T) {
	seen := &evictionsSeen{}
	client := fakeapi.ClientOf(seen)
	newRequests(client.CoreV1().RESTClient(), client.ResourceV1().RESTClient()).
		carryOut(t.Context(), eviction.Evict{Ticket: 1, Name: types.NamespacedName{Namespace: "default", Name: "web"}, UID: "u"})
	var got policyv1.Eviction
	if err := json.Unmarshal(seen.body, &got); err != nil {
		t.Fatal(err, string(seen.body))
	}
	if got.Annotations[evictionguard.ReplacedAnnotation] != "true" {
		t.Errorf("the webhook holds this eviction: %s", seen.body)
	}
}
