// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"strings"
	"testing"
	"time"

	berthv1alpha1 "github.com/berth-k8s/berth/api/berth/v1alpha1"
	"github.com/berth-k8s/berth/internal/engine/config"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/queryserver"
)

// TestApplyOnThePageIsInTheNamespaceOfItsFlag forecasts a manifest without a
// namespace: the flag alone would have no effect, and is refused.
func TestApplyOnThePageIsInTheNamespaceOfItsFlag(t *testing.T) {
	a := &queryserver.Answers{Parse: parseOnPage, Read: func(_ context.Context, _ queryserver.Question, use func(*queryserver.State) error) error {
		set, err := manifest.Read([]string{"-"}, strings.NewReader("{apiVersion: v1, kind: Namespace, metadata: {name: shop}}"), manifest.Options{Lenient: true})
		if err != nil {
			return err
		}
		running, err := config.RunningOf(nil, nil, nil, time.Now())
		if err != nil {
			return err
		}
		return use(&queryserver.State{Set: set, Running: running})
	}}
	manifest := "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: c, image: i}]}}"
	r := &berthv1alpha1.WhatIfRequest{Namespace: "shop", Operations: []string{"apply", "-f", "-"}, Manifest: manifest}
	if answer, err := a.WhatIf(t.Context(), r); err != nil || !strings.Contains(answer.Text, "shop/a") {
		t.Errorf("%v\n%s", err, answer.GetText())
	}
	r = &berthv1alpha1.WhatIfRequest{Operations: []string{"-n", "shop", "apply", "-f", "-"}, Manifest: manifest}
	if answer, err := a.WhatIf(t.Context(), r); err == nil || !strings.Contains(err.Error(), "namespace") {
		t.Errorf("%v\n%s", err, answer.GetText())
	}
}
