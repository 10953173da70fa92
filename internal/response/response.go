// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package response

import "fmt"

// Ticket matches a response to its request. Actions may embed the Ticket of their request.
type Ticket uint64

// TicketOf returns the Ticket that an action embeds, or 0.
func TicketOf(action any) Ticket {
	if request, is := action.(interface{ ticket() Ticket }); is {
		return request.ticket()
	}
	return 0
}

func (t Ticket) ticket() Ticket { return t }

// Outcome is the API server's response to a request. Journals contain the numbers.
type Outcome int

const (
	OK       Outcome = iota
	Gone             // 404: no object of that name
	Conflict         // 409: the UID or resource version differs from the requested one
	Busy             // 429: a budget, or the server itself, refuses for now
	Refused          // another 4xx: a webhook, missing permissions, validation
	Failed           // 5xx, a timeout, no connection: the request may have been carried out
	Asked            // an EvictionRequest exists for the pod, so its responders may evict it at any time
)

// String names the outcome for logs.
func (o Outcome) String() string {
	if names := [...]string{"OK", "Gone", "Conflict", "Busy", "Refused", "Failed", "Asked"}; o >= 0 && int(o) < len(names) {
		return names[o]
	}
	return fmt.Sprintf("Outcome(%d)", int(o))
}
