// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package serveflags has the flags of the integrations for reaching a query service of Berth.
package serveflags

import (
	"os"

	"github.com/spf13/pflag"

	berthv1alpha1 "github.com/berth-k8s/berth/api/berth/v1alpha1"
	"github.com/berth-k8s/berth/client"
)

// Flags identifies a query service, and the caller.
type Flags struct {
	client.Options
	url, ca string
}

// AddFlags adds the flags. The usage describes the file with the token, with f.TokenFile as the
// default.
func (f *Flags) AddFlags(flags *pflag.FlagSet, tokenUsage string) {
	flags.StringVar(&f.url, "berth-url", "https://127.0.0.1:8423", "address of berth serve")
	flags.StringVar(&f.TokenFile, "berth-token-file", f.TokenFile, tokenUsage)
	flags.StringVar(&f.ca, "berth-ca-file", "", "file with the CA of berth serve; by default, the CAs of the system")
	flags.BoolVar(&f.Insecure, "berth-insecure", false, "do not verify the certificate of berth serve")
}

// Client returns a client of the query service. It does not connect yet.
func (f *Flags) Client() (berthv1alpha1.QueryServiceClient, error) {
	o := f.Options
	if f.ca != "" {
		var err error
		if o.CA, err = os.ReadFile(f.ca); err != nil {
			return nil, err
		}
	}
	return client.New(f.url, o)
}
