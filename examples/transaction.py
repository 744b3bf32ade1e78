"""Consume, process, produce in one transaction: a crash in the middle leaves no half-done work and doubles nothing."""

import sys
from itertools import islice

import waystation as ws

URL = "waystation://127.0.0.1:9092"


def settle(mq: ws.Client, payments: ws.Queue, *, crash: bool) -> None:
    """Takes a payment, writes it into the ledger and queues a receipt: all of it happens, or nothing."""
    with mq.transaction("settler-1") as tx:  # the id is the worker's: a newer one fences an older one off
        payment = payments.get(timeout=30)
        amount = payment.json()["amount"]
        tx.publish("ledger", {"booked": amount}, key=payment.json()["account"])
        tx.put("receipts", f"thank you for {amount}")
        tx.ack(payment)
        if crash:
            raise RuntimeError("the power went out")
    print(f"committed {amount}, on delivery {payment.deliveries}")


def main(url: str) -> None:
    with ws.connect(url) as mq:
        payments, receipts = mq.queue("payments"), mq.queue("receipts")
        payments.put({"account": "anna", "amount": 40})
        try:
            settle(mq, payments, crash=True)
        except RuntimeError as error:
            print(f"rolled back, {len(receipts)} receipts: {error}")
        settle(mq, payments, crash=False)  # the payment is redelivered

        with receipts.get(timeout=30) as receipt:
            print(f"receipt: {receipt.text()}")
        print(f"{len(payments)} payments and {len(receipts)} receipts left")
        with mq.subscribe("ledger", group="audit", mode="stream", start="earliest") as ledger:
            for entry in islice(ledger, 1):
                print(f"ledger: {entry.key} {entry.json()['booked']}")


if __name__ == "__main__":
    main(*sys.argv[1:] or [URL])
