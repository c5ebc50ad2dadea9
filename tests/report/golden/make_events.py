"""Writes events.bin with TensorBoard's own writer and messages, which share no code with ours."""
import pathlib

from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer.record_writer import RecordWriter

here = pathlib.Path(__file__).parent
with open(here / "events.bin", "wb") as file:
    writer = RecordWriter(file)

    def scalars(time, step, **values):
        summary = summary_pb2.Summary(
            value=[summary_pb2.Summary.Value(tag=tag.replace("__", "/"), simple_value=value) for tag, value in values.items()])
        writer.write(event_pb2.Event(wall_time=time, step=step, summary=summary).SerializeToString())

    writer.write(event_pb2.Event(wall_time=1700000000.5, file_version="brain.Event:2").SerializeToString())
    scalars(1700000001.25, 1, train__loss=5.5)
    scalars(1700000002.0, 300, train__loss=0.1, speed__tokens_per_second=123456.7)
    start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
    writer.write(event_pb2.Event(wall_time=1700000003.0, step=201, session_log=start).SerializeToString())
    writer.flush()
