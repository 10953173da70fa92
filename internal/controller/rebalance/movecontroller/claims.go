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
	var list struct{ Items []disruption.NodePool }
	if err := readList(ctx, r.karpenter("GET", "nodepools"), &list); err != nil {
		return nil, fmt.Errorf("list nodepools: %w", err)
	}
	return list.Items, nil
}

// readList reads a list of a kind of Karpenter. It leaves the list empty if Karpenter is not
// installed.
func readList(ctx context.Context, request *rest.Request, list any) error {
	text, err := request.Do(ctx).Raw()
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return err
	}
	return json.Unmarshal(text, list)
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
	var list metav1.PartialObjectMetadataList
	err := readList(ctx, r.claims("GET").Param("labelSelector", execute.BoughtLabel), &list)
	for i := range list.Items {
		if c := &list.Items[i]; err == nil && !a.Keep[c.Name] && c.DeletionTimestamp == nil {
			err = r.sellNode(ctx, c.Name, c.UID)
		}
	}
	return err
}
