// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package outcome

import (
	"errors"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/response"
)

// Of returns the outcome of a request that ended with err, which may be nil. Errors without a
// status, such as timeouts or broken connections, and all 5xx are Failed: the request may have been
// carried out. The error of a terminating namespace has the code 403 and is Busy, because the pods
// of the namespace are deleted soon.
func Of(err error) response.Outcome {
	var status apierrors.APIStatus
	switch {
	case err == nil:
		return response.OK
	case apierrors.IsNotFound(err):
		return response.Gone
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		return response.Conflict
	case apierrors.IsTooManyRequests(err), apierrors.HasStatusCause(err, v1.NamespaceTerminatingCause):
		return response.Busy
	case errors.As(err, &status) && status.Status().Code >= 400 && status.Status().Code < 500:
		return response.Refused
	}
	return response.Failed
}

// RetryAfter returns the delay that the server requests before the next attempt, or 0.
func RetryAfter(err error) time.Duration {
	seconds, _ := apierrors.SuggestsClientDelay(err)
	return time.Duration(seconds) * time.Second
}

// Preconditions returns metadata for a patch that fails with a conflict if the object has a
// different UID or resource version, because a patch cannot change these fields. An empty argument
// adds no precondition.
func Preconditions(uid types.UID, resourceVersion string) map[string]any {
	metadata := map[string]any{}
	if uid != "" {
		metadata["uid"] = uid
	}
	if resourceVersion != "" {
		metadata["resourceVersion"] = resourceVersion
	}
	return metadata
}
