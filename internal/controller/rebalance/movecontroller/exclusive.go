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
// identity is the holder, or empty for one of this process; see [lead.Options]. held receives the
// identities of the other holders. The context of work ends if the Lease is lost, and its client
// then sends nothing any more.
func Exclusively(ctx context.Context, config *rest.Config, identity string, held func(holder string),
	work func(context.Context, kubernetes.Interface) error) error {
	options := lead.Defaults(ExchangeLease)
	options.Identity = identity
	elector, err := lead.New(config, options, nil)
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
