// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package movecontroller

import (
	"context"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/berth-k8s/berth/internal/controller/rebalance/execute"
	"github.com/berth-k8s/berth/internal/world/disruption"
)

// claims prepares a request about Karpenter's NodeClaims.
func (r *requests) claims(verb string, name ...string) *rest.Request {
	return r.karpenter(verb, append([]string{"nodeclaims"}, name...)...)
}

// karpenter prepares a request about a kind of Karpenter, which has no typed client.
func (r *requests) karpenter(verb string, path ...string) *rest.Request {
	path = append([]string{"/apis/karpenter.sh/v1"}, path...)
	return r.client.CoreV1().RESTClient().Verb(verb).AbsPath(path...).MaxRetries(0).
		SetHeader("Content-Type", runtime.ContentTypeJSON).SetHeader("Accept", runtime.ContentTypeJSON)
}

// nodePools returns the NodePools, which limit the removal of their nodes. They are read for each
// turn, because a user may forbid all removals at any time.
func (r *requests) nodePools(ctx context.Context) ([]disruption.NodePool, error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	text, err := r.karpenter("GET", "nodepools").Do(ctx).Raw()
	if apierrors.IsNotFound(err) {
		return nil, nil // Karpenter is not installed
	}
	var list struct{ Items []disruption.NodePool }
	if err == nil {
		err = json.Unmarshal(text, &list)
	}
	if err != nil {
		return nil, fmt.Errorf("list nodepools: %w", err)
	}
	return list.Items, nil
}

// buyNode creates a NodeClaim. One of this name exists if the response to an earlier request was
// lost.
func (r *requests) buyNode(ctx context.Context, a execute.BuyNode) error {
	err := r.claims("POST").Body(a.Object).Do(ctx).Error()
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// sellNode deletes a NodeClaim: Karpenter then removes its node and its machine.
func (r *requests) sellNode(ctx context.Context, claim string, uid types.UID) error {
	options, err := json.Marshal(metav1.NewPreconditionDeleteOptions(string(uid)))
	if err != nil {
		return err
	}
	return r.claims("DELETE", claim).Body(options).Do(ctx).Error()
}

// sellUnused deletes the NodeClaims of exchanges, except for those to keep.
func (r *requests) sellUnused(ctx context.Context, a execute.SellUnused) error {
	text, err := r.claims("GET").Param("labelSelector", execute.BoughtLabel).Do(ctx).Raw()
	if apierrors.IsNotFound(err) {
		return nil // Karpenter is not installed
	}
	var list metav1.PartialObjectMetadataList
	if err == nil {
		err = json.Unmarshal(text, &list)
	}
	for i := range list.Items {
		if c := &list.Items[i]; err == nil && !a.Keep[c.Name] && c.DeletionTimestamp == nil {
			err = r.sellNode(ctx, c.Name, c.UID)
		}
	}
	return err
}
