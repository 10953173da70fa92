// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package connect

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

func TestReachSaysWhatToDo(t *testing.T) {
	request := func(cause error) error {
		return &url.Error{Op: "Get", URL: "https://10.0.0.1:6443/api/v1/nodes?x=y", Err: cause}
	}
	for _, c := range []struct {
		err  error
		says string
	}{
		{request(errors.New("connection refused")), "the API server (https://10.0.0.1:6443) cannot be reached: connection refused: check"},
		{request(context.DeadlineExceeded), "the API server (https://10.0.0.1:6443) cannot be reached: no answer: check"},
		{fmt.Errorf("client rate limiter: %w", context.DeadlineExceeded), "cannot be reached: no answer: check"},
		{apierrors.NewUnauthorized("Unauthorized"), "does not accept the credentials (Unauthorized): check"},
	} {
		err := WithRemedy(c.err)
		if text := err.Error(); !strings.Contains(text, c.says) || !strings.Contains(text, "--kubeconfig") || strings.Contains(text, "x=y") {
			t.Errorf("%v: %s", c.err, text)
		}
		if !errors.Is(err, c.err) {
			t.Errorf("%v: its cause is lost", c.err)
		}
	}
	if err := errors.New("forbidden"); WithRemedy(err) != err || WithRemedy(nil) != nil {
		t.Error("another error is changed")
	}
}
