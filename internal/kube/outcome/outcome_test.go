// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package outcome

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/berth-k8s/berth/internal/response"
)

func TestErrorsHaveOutcomes(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	terminating := apierrors.NewForbidden(pods, "p", errors.New("the namespace is terminating"))
	terminating.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: v1.NamespaceTerminatingCause}}
	throttled := apierrors.NewTooManyRequests("a budget", 7)
	for name, c := range map[string]struct {
		err   error
		want  response.Outcome
		after time.Duration
	}{
		"none":                    {nil, response.OK, 0},
		"404":                     {apierrors.NewNotFound(pods, "p"), response.Gone, 0},
		"409":                     {apierrors.NewConflict(pods, "p", errors.New("another version")), response.Conflict, 0},
		"exists":                  {apierrors.NewAlreadyExists(pods, "p"), response.Conflict, 0},
		"429":                     {throttled, response.Busy, 7 * time.Second},
		"429, wrapped":            {fmt.Errorf("evict: %w", throttled), response.Busy, 7 * time.Second},
		"403":                     {apierrors.NewForbidden(pods, "p", errors.New("no permission")), response.Refused, 0},
		"a terminating namespace": {terminating, response.Busy, 0},
		"422":                     {apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "patch", pods, "p", "", 0, false), response.Refused, 0},
		"500":                     {apierrors.NewInternalError(errors.New("etcd")), response.Failed, 0},
		"504 after a timeout":     {apierrors.NewTimeoutError("too slow", 3), response.Failed, 3 * time.Second},
		"no status":               {context.DeadlineExceeded, response.Failed, 0},
	} {
		if got := Of(c.err); got != c.want {
			t.Errorf("%s: outcome %v, want %v", name, got, c.want)
		}
		if got := RetryAfter(c.err); got != c.after {
			t.Errorf("%s: delay %v, want %v", name, got, c.after)
		}
	}
}
