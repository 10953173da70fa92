// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package movecontroller

import (
	"context"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-k8s/berth/internal/kube/lead"
)

// ExchangeLease is the Lease in kube-system of the process that exchanges nodes. A second process
// would delete the new nodes of the first one, which are still unused.
const ExchangeLease = "berth-rebalance-cost"

// Exclusively calls work while this process holds ExchangeLease, and waits for the Lease before.
// held receives the identities of its holders, except for this process. The context of work ends if
// the Lease is lost, and its client then sends nothing any more.
func Exclusively(ctx context.Context, config *rest.Config, held func(holder string),
	work func(context.Context, kubernetes.Interface) error) error {
	elector, err := lead.New(config, lead.Defaults(ExchangeLease), nil)
	if err != nil {
		return err
	}
	elector.OnNewLeader = func(holder string) {
		if holder != elector.Identity() {
			held(holder)
		}
	}
	own := rest.CopyConfig(config)
	lead.Guard(own, elector.Over)
	client, err := kubernetes.NewForConfig(own)
	if err != nil {
		return err
	}
	return elector.Run(ctx, func(ctx context.Context) error { return work(ctx, client) })
}
